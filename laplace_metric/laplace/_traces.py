"""The uncertainty of many embeddings without their distributions: traces, a block at a time.

    raw         tr C                            C = J S J^T
    sphere      (tr C - u^T C u) / |z|^2        u = z / |z|: the trace of the tangent covariance

C is never written out:

    linear head, diagonal or Kronecker     in blocks, below
    layered head, either                   sum over layers of v . diag(M^T M), v . (M^T u)^2
    any other                              |F|^2, |F^T u|^2 with F F^T = C

Traces of a linear head, in blocks that stay in a CPU's cache.

``C = Q_S diag(V x^2) Q_S^T`` for the input x seen in Q_A, V [Z, A] the posterior's variances. With
the diagonal structure ``Q_S = Q_A = I``. With K = N D Z multiplications, of one product
``[N, D] x [D, Z]``:

    raw, diagonal        tr C = x^2 . s                 s the column sums of V      K / Z
    raw, Kronecker       tr C = |L^T a|^2               L L^T = Q_A diag(s) Q_A^T   0.6 K D / Z
    sphere, diagonal     z^T C z = z^2 . V x^2          two products                2 K
    sphere, Kronecker    the same, with Q_S^T z and x = Q_A^T a                     (2 + D / Z) K

L is triangular, so of its columns only the part below the diagonal is multiplied.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._structures import KroneckerEigenbasis, KroneckerEigenblock
from laplace_metric.heads._jacobian import Affine, Factor, HeadJacobian, LinearJacobian, pad
from laplace_metric.laplace._posterior import (
    Posterior,
    covariance_factor,
    is_structured,
    jacobian_rows,
)
from laplace_metric.models._store import block_rows

Forms = tuple[Tensor, Tensor, Tensor]
"""``tr C``, ``z^T C z`` and ``z^T z`` [n]."""


@torch.no_grad()
def traced(
    traces: Traces,
    features: Float[Tensor, "n D"],
    raw: Float[Tensor, "n Z"] | None = None,
    *,
    spherical: bool,
) -> Float[Tensor, " n"]:
    """Trace of the covariance of each (projected) embedding, as ``Embedding.uncertainty`` has it.

    Parameters
    ----------
    traces : Traces
        Of ``traces_of``: what does not depend on the features.
    features : Tensor [n, D]
        What enters the head.
    raw : Tensor [n, Z] or None
        z, where it is known: on the sphere it saves the head's own product.
    spherical : bool
        Whether embeddings are directions.

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> x = torch.randn(20, 8)
    >>> fit = LaplaceEmbedder.from_embeddings(x, torch.arange(20) % 4).fitted_
    >>> traced(traces_of(fit.jacobian, fit.posterior), x, spherical=True).shape
    torch.Size([20])
    """
    traces_out = features.new_empty(len(features))
    for start in range(0, len(features), traces.rows):
        part = slice(start, start + traces.rows)
        if spherical:
            z = None if raw is None else raw[part]
            traces_out[part] = _tangent(*traces.forms(features[part], z))
        else:
            traces_out[part] = traces.trace(features[part])
    return traces_out


def _tangent(trace: Tensor, along: Tensor, square: Tensor) -> Tensor:
    """``(tr C - u^T C u) / |z|^2``, >= 0; infinite at z = 0."""
    along = along / square.clamp_min(1e-24)
    return (trace - along).clamp_min_(0).div_(square)


def traces_of(head: HeadJacobian, posterior: Posterior) -> Traces:
    """The cheapest form for this head and structure; of a Kronecker basis, O(A^2 Z) once."""
    if not is_structured(head, posterior):
        return _RootTraces(head, posterior)
    if not isinstance(head, LinearJacobian):
        return _LayerTraces(head, posterior)
    if isinstance(posterior.basis, KroneckerEigenbasis):
        (block,) = posterior.basis.blocks
        return KroneckerTraces(head, block, block.fold(posterior.spectrum))
    return DiagonalTraces(head, head.layout.fold(posterior.spectrum))


class _RootTraces:
    """From ``F = J Q S^(1/2)`` [n, Z, P]."""

    def __init__(self, head: HeadJacobian, posterior: Posterior) -> None:
        self.head, self.posterior, self.rows = head, posterior, jacobian_rows(head)

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return covariance_factor(self.head, self.posterior, h).square_().sum((1, 2))

    def forms(self, h: Tensor, z: Tensor | None) -> Forms:
        z = self.head.forward(h) if z is None else z
        f = covariance_factor(self.head, self.posterior, h)
        along = (z[:, None, :] @ f).square_().sum((1, 2))
        return f.square_().sum((1, 2)), along, z.square().sum(1)


class _LayerTraces:
    """From the layers of a chain, ``J_l = M_l (x) a_l^T``."""

    def __init__(self, head: HeadJacobian, posterior: Posterior) -> None:
        self.head, self.posterior = head, posterior
        widest = head.n_outputs * max(layout.n_outputs for layout in head.layouts)
        self.rows = block_rows(widest, posterior.mean.element_size())

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return torch.stack([_sum(f, v) for f, v in self._terms(h)]).sum(0)

    def forms(self, h: Tensor, z: Tensor | None) -> Forms:
        z = self.head.forward(h) if z is None else z
        terms = self._terms(h)
        trace = torch.stack([_sum(f, v) for f, v in terms]).sum(0)
        along = torch.stack([(v * f.vjp(z).square()).sum(1) for f, v in terms]).sum(0)
        return trace, along, z.square().sum(1)

    def _terms(self, h: Tensor) -> list[tuple[Factor, Tensor]]:
        """M [Z, O] and the variances v [n, O] between its columns, of every layer."""
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
    """``tr M diag(v) M^T`` [n]."""
    return (variances * factor.gram_diagonal()).sum(1)


CACHED_BYTES, OTHER_BYTES = 2**21, 2**26
"""Size of a block of features: a core's own cache on the CPU, long enough to fill a GPU."""
STRIP = 128
"""Columns of L that are multiplied at once."""


class DiagonalTraces:
    """``tr C`` and ``z^T C z`` of a block of at most ``rows`` features h [n, D].

    Parameters
    ----------
    head : LinearJacobian
    variances : Tensor [Z, A]
        V, of the entries of [W, b].
    """

    def __init__(self, head: LinearJacobian, variances: Tensor) -> None:
        layout = head.layout
        budget = CACHED_BYTES if variances.device.type == "cpu" else OTHER_BYTES
        self.rows = block_rows(layout.n_features, variances.element_size(), budget)
        self.outputs = Affine.of(layout.fold(head.parameters).mT, layout.n_features)
        self.variances = Affine.of(variances.mT, layout.n_features)
        self.sums = Affine.of(variances.sum(0)[:, None], layout.n_features)

    def trace(self, h: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        """``tr C`` [n]."""
        return self.sums(self.squared_inputs(h))[:, 0]

    def forms(self, h: Tensor, z: Tensor | None) -> Forms:
        """``tr C``, ``z^T C z`` and ``z^T z`` [n]; of the head's own z if it is not given."""
        v = self.variances(self.squared_inputs(h))
        square = (self.outputs(h) if z is None else self.seen(z)).square()
        return v.sum(1), v.mul(square).sum(1), square.sum(1)

    def squared_inputs(self, h: Float[Tensor, "n D"]) -> Float[Tensor, "n A"]:
        """x^2 [n, D]."""
        return h.square()

    def seen(self, z: Tensor) -> Tensor:
        """Q_S^T z [n, Z]."""
        return z


class KroneckerTraces(DiagonalTraces):
    """The same with inputs seen in Q_A and outputs in Q_S."""

    def __init__(self, head: LinearJacobian, block: KroneckerEigenblock, variances: Tensor) -> None:
        super().__init__(head, variances)
        size = head.layout.n_features
        self.block, self.inputs = block, Affine.of(block.right, size, padded=True)
        self.outputs = Affine.of(head.layout.fold(head.parameters).mT @ block.left, size)
        self.variances = Affine.of(pad(variances).mT, self.inputs.matrix.shape[1])
        self._sums = variances.sum(0)

    @cached_property
    def _strips(self) -> list[tuple[int, Affine]]:
        """(first row, rows from there on) of every ``STRIP`` columns of L; of the raw geometry."""
        half = self.block.right.double() * self._sums.double().sqrt()  # any root of Q diag(s) Q^T
        root = torch.linalg.qr(half.mT, mode="r").R.mT.to(self._sums)  # made triangular
        n_features = len(self.inputs.matrix)
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

    def seen(self, z: Tensor) -> Tensor:
        return z @ self.block.left


Traces = DiagonalTraces | _RootTraces | _LayerTraces
"""Traces of blocks of at most ``rows`` features h [n, D].

``trace``: tr C [n]; ``forms``: on the sphere, of the head's own z if it is not given.
"""
