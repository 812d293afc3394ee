"""The uncertainty of many embeddings without their distributions: traces, a block at a time.

    raw         tr C                C = J S J^T
    sphere      E |z/|z| - u|^2     u = the mean direction (``distributions._round_chord``)

                                           tr C, t = (tr C - u^T C u) / |z|^2      on the sphere
    linear head, diagonal or Kronecker     below                            eigenvalues
    layered head, either                   sums of v . diag(M^T M), v . (M^T u)^2  C, or t alone
    any other                              |F|^2, |F^T u|^2 with F F^T = C         C, or t alone

C is written out up to ``FEW`` dimensions, where its form matters most; t is used beyond.

Traces of the covariance of a linear head, in blocks that stay in a CPU's cache.

``C = Q_S diag(V x^2) Q_S^T`` for the input x seen in Q_A, V [Z, A] the posterior's variances. With
the diagonal structure ``Q_S = Q_A = I``. With K = N D Z multiplications, of one product
``[N, D] x [D, Z]``:

    raw, diagonal        tr C = x^2 . s                 s the column sums of V      K / Z
    raw, Kronecker       tr C = |L^T a|^2               L L^T = Q_A diag(s) Q_A^T   0.6 K D / Z
    sphere, diagonal     eigenvalues V x^2, and z       two products                2 K
    sphere, Kronecker    the same, with Q_S^T z and x = Q_A^T a                     (2 + D / Z) K

L is triangular, so of its columns only the part below the diagonal is multiplied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.blocks import CACHE_BYTES, LARGE_BYTES, LEAST_ROWS, block_rows
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis, KroneckerEigenblock
from laplace_metric.distributions._round_chord import FEW, ROWS, round_chord, spectral_chord
from laplace_metric.heads._affine import Affine, pad
from laplace_metric.heads._factors import Factor
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._predictive_covariance import (
    covariance,
    covariance_factor,
    is_structured,
    jacobian_rows,
)

CORE_BYTES = 2**21
"""Memory of a block of features on the CPU: a core's own cache."""
STRIP = 128
"""Columns of L that are multiplied at once."""


class Traces(ABC):
    """Uncertainty of many embeddings under one posterior, without their covariances C."""

    rows: int
    """Largest number n of features in one call."""

    @abstractmethod
    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        """Compute ``tr C`` [n] of raw embeddings."""

    @abstractmethod
    def chord(self, h: Float[Tensor, "n D"], z: Float[Tensor, "n Z"] | None) -> Tensor:
        """Compute the expected squared distance [n] of directions.

        z are the raw embeddings, if they are known; None: the head computes them.
        """


class LinearTraces(Traces):
    """Traces of a linear head: variances of outputs are a product of squared inputs.

    The matrices of a chord are made when one is asked for: raw embeddings need none of them.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of a linear head.
    spread : Tensor [Z, A]
        Variances V of the weights, in the basis of the posterior.
    """

    def __init__(self, head: HeadJacobian, spread: Float[Tensor, "Z A"]) -> None:
        self.head, self.spread, self.n_outputs = head, spread, head.n_outputs
        (layout,) = head.layouts
        budget = CORE_BYTES if spread.device.type == "cpu" else LARGE_BYTES
        self.rows = block_rows(layout.n_features * spread.element_size(), budget, LEAST_ROWS)

    @property
    def n_features(self) -> int:
        """Width of h."""
        return self.head.layouts[0].n_features

    @property
    @abstractmethod
    def outputs(self) -> Affine:
        """Map from h to Q_S^T z."""

    @property
    @abstractmethod
    def variances(self) -> Affine:
        """Map from ``squared_inputs`` to the eigenvalues of C."""

    def chord(self, h: Float[Tensor, "n D"], z: Float[Tensor, "n Z"] | None) -> Tensor:
        variances = self.variances(self.squared_inputs(h))[:, : self.n_outputs]
        return spectral_chord(self.outputs(h) if z is None else self.seen(z), variances)

    @abstractmethod
    def squared_inputs(self, h: Float[Tensor, "n D"]) -> Float[Tensor, "n A"]:
        """Return x^2 of the inputs x seen in Q_A."""

    @abstractmethod
    def seen(self, z: Float[Tensor, "n Z"]) -> Float[Tensor, "n Z"]:
        """Return Q_S^T z."""


@final
class DiagonalTraces(LinearTraces):
    """Traces of a linear head with the diagonal structure, of variances V [Z, A] of [W, b]."""

    def __init__(self, head: HeadJacobian, spread: Float[Tensor, "Z A"]) -> None:
        super().__init__(head, spread)
        self.sums = Affine.of(spread.sum(0)[:, None], self.n_features)

    @cached_property
    def outputs(self) -> Affine:
        weights = self.head.layouts[0].fold(self.head.parameters)
        return Affine.of(weights.mT, self.n_features)

    @cached_property
    def variances(self) -> Affine:
        return Affine.of(self.spread.mT, self.n_features)

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return self.sums(self.squared_inputs(h))[:, 0]

    def squared_inputs(self, h: Float[Tensor, "n D"]) -> Float[Tensor, "n A"]:
        return h.square()

    def seen(self, z: Float[Tensor, "n Z"]) -> Float[Tensor, "n Z"]:
        return z


@final
class KroneckerTraces(LinearTraces):
    """Traces of a linear head with the Kronecker structure: inputs in Q_A, outputs in Q_S."""

    def __init__(
        self, head: HeadJacobian, block: KroneckerEigenblock, spread: Float[Tensor, "Z A"]
    ) -> None:
        super().__init__(head, spread)
        self.block = block

    @cached_property
    def inputs(self) -> Affine:
        """Map from h to x, padded."""
        return Affine.of(self.block.right, self.n_features, padded=True)

    @cached_property
    def outputs(self) -> Affine:
        weights = self.head.layouts[0].fold(self.head.parameters)
        return Affine.of(weights.mT @ self.block.left, self.n_features)

    @cached_property
    def variances(self) -> Affine:
        return Affine.of(pad(self.spread).mT, self.inputs.matrix.shape[1])

    @cached_property
    def _strips(self) -> list[tuple[int, Affine]]:
        """Return (first row, L from there on) of every ``STRIP`` columns of the triangular L.

        Only the raw geometry needs them.
        """
        sums, n_features = self.spread.sum(0), self.n_features
        half = self.block.right.double() * sums.double().sqrt()  # any root of Q diag(s) Q^T
        root = torch.linalg.qr(half.mT, mode="r").R.mT.to(sums)  # made triangular
        return [
            (start, Affine.of(root[start:, start : start + STRIP], n_features - start))
            for start in range(0, len(root), STRIP)
        ]

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        total = h.new_zeros(len(h))
        for start, strip in self._strips:
            total += strip(h[:, start:]).square_().sum(1)
        return total

    def squared_inputs(self, h: Float[Tensor, "n D"]) -> Float[Tensor, "n A"]:
        return self.inputs(h).square_()

    def seen(self, z: Float[Tensor, "n Z"]) -> Float[Tensor, "n Z"]:
        return z @ self.block.left


@torch.no_grad()
def traced(
    traces: Traces,
    features: Float[Tensor, "n D"],
    raw: Float[Tensor, "n Z"] | None = None,
    *,
    spherical: bool,
) -> Float[Tensor, " n"]:
    """Compute the expected squared distance of each embedding from its mean [n].

    It is ``Embedding.uncertainty``: the trace of the covariance, or that of directions.

    Parameters
    ----------
    traces : Traces
        Result of ``traces_of``: everything that does not depend on the features.
    features : Tensor [n, D]
        Inputs of the head.
    raw : Tensor [n, Z] or None
        Raw embeddings z, if they are known: on the sphere this saves the product of the head.
    spherical : bool
        Embeddings are directions.

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> x = torch.randn(20, 8)
    >>> fit = LaplaceEmbedder.from_embeddings(x, torch.arange(20) % 4).fitted_
    >>> traced(traces_of(fit.jacobian, fit.posterior), x, spherical=True).shape
    torch.Size([20])
    """
    traces_out = features.new_empty(len(features))
    rows = min(traces.rows, ROWS) if spherical else traces.rows
    for start in range(0, len(features), rows):
        part = slice(start, start + rows)
        if spherical:
            z = None if raw is None else raw[part]
            traces_out[part] = traces.chord(features[part], z)
        else:
            traces_out[part] = traces.trace(features[part])
    return traces_out


def traces_of(head: HeadJacobian, posterior: Posterior) -> Traces:
    """Return the cheapest form for this head and structure; a Kronecker basis costs O(A^2 Z) once.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head.
    posterior : Posterior
        Gaussian over the parameters of this head.
    """
    if not is_structured(head, posterior):
        return RootTraces(head, posterior)
    if not head.linear:
        return LayerTraces(head, posterior)
    if isinstance(posterior.basis, KroneckerEigenbasis):
        (block,) = posterior.basis.blocks
        return KroneckerTraces(head, block, block.fold(posterior.spectrum))
    return DiagonalTraces(head, head.layouts[0].fold(posterior.spectrum))


class GeneralTraces(Traces):
    """Traces of a head whose covariances have no basis in common."""

    def __init__(self, head: HeadJacobian, posterior: Posterior, rows: int) -> None:
        self.head, self.posterior, self.rows = head, posterior, rows

    @abstractmethod
    def along(self, h: Float[Tensor, "n D"], u: Float[Tensor, "n Z"]) -> tuple[Tensor, Tensor]:
        """Compute ``tr C`` and ``u^T C u`` [n]."""

    def chord(self, h: Float[Tensor, "n D"], z: Float[Tensor, "n Z"] | None) -> Tensor:
        z = self.head.forward(h) if z is None else z
        if z.shape[1] <= FEW:
            return covariance(self.head, self.posterior, h).chord(z)
        trace, along = self.along(h, nn.functional.normalize(z, dim=1))
        return round_chord((trace - along).clamp_min(0) / z.square().sum(1), z.shape[1])


@final
class RootTraces(GeneralTraces):
    """Traces of any head, from ``F = J Q S^(1/2)`` [n, Z, P] with ``F F^T = C``."""

    def __init__(self, head: HeadJacobian, posterior: Posterior) -> None:
        super().__init__(head, posterior, jacobian_rows(head))

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return covariance_factor(self.head, self.posterior, h).square_().sum((1, 2))

    def along(self, h: Float[Tensor, "n D"], u: Float[Tensor, "n Z"]) -> tuple[Tensor, Tensor]:
        f = covariance_factor(self.head, self.posterior, h)
        along = (u[:, None, :] @ f).square_().sum((1, 2))
        return f.square_().sum((1, 2)), along


@final
class LayerTraces(GeneralTraces):
    """Traces of a chain of linear layers, from ``J_l = M_l (x) a_l^T`` of each layer l."""

    def __init__(self, head: HeadJacobian, posterior: Posterior) -> None:
        widest = head.n_outputs * max(layout.n_outputs for layout in head.layouts)
        rows = block_rows(widest * posterior.mean.element_size(), CACHE_BYTES, LEAST_ROWS)
        super().__init__(head, posterior, rows)

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return torch.stack([_sum(f, v) for f, v in self._terms(h)]).sum(0)

    def along(self, h: Float[Tensor, "n D"], u: Float[Tensor, "n Z"]) -> tuple[Tensor, Tensor]:
        terms = self._terms(h)
        trace = torch.stack([_sum(f, v) for f, v in terms]).sum(0)
        along = torch.stack([(v * f.vjp(u).square()).sum(1) for f, v in terms]).sum(0)
        return trace, along

    def _terms(self, h: Tensor) -> list[tuple[Factor, Tensor]]:
        """Return M [Z, O] of every layer and the variances v [n, O] of the layer's own outputs."""
        # the layers' weights are independent: C = sum_l M_l diag(v_l) M_l^T, where output o of
        # layer l has the variance v_o = sum_a V_oa a_a^2; in a Kronecker basis M becomes M Q_S and
        # a becomes Q_A^T a, so that the variances V are those of the eigendirections
        layers, basis = self.head.layers(h) or [], self.posterior.basis
        parts = self.posterior.spectrum.split([x.n_parameters for x in self.head.layouts])
        if isinstance(basis, KroneckerEigenbasis):
            blocks = basis.blocks
            layers = [x.rotated(b.left, b.right) for x, b in zip(layers, blocks, strict=True)]
            folded = [b.fold(part) for b, part in zip(blocks, parts, strict=True)]
        else:
            folded = [x.layout.fold(part) for x, part in zip(layers, parts, strict=True)]
        pairs = zip(layers, folded, strict=True)
        return [(x.factor, x.inputs.square() @ variances.mT) for x, variances in pairs]


def _sum(factor: Factor, variances: Tensor) -> Tensor:
    """Return ``tr M diag(v) M^T`` [n]."""
    return (variances * factor.gram_diagonal()).sum(1)
