"""Vectors whose inner product is the expected one under the posterior of a linear head.

With shared weights ``W ~ N(W_map, S)``, of ``Fitted.predictive_posterior``, and ``h = [h; 1]``,
S_oo [A, A] the block of output o,

    E[z(x)' z(y)] = z_x' z_y + h_x' C h_y      C = sum_o S_oo      = <v_x, v_y>
    v_x = [z_x ; C^(1/2) h_x]

so one vector an input searches by the posterior predictive, in any engine and without a draw. Its
squared distances are ``E |z(x) - z(y)|^2``, exactly; its cosine is the expected cosine to first
order. In the eigenbasis of C, ``C = R diag(c) R'``:

    diagonal      R = I      c_a = sum_o V_oa         V [Z, A] the variances of the weights
    Kronecker     R = Q_A    c_a = sum_o V_oa         V in the eigenbasis (Q_S is orthogonal)
    full          R, c of ``sum_o S_oo`` [A, A]

Another prior has the same basis. With l [Z, A] what the data add to the precision of each weight,
and t the prior precision in units of their mean,

    c_a = sum_o 1 / (l_oa + t mean(l))

so that t -> infinity is noise, which is the same in every direction, and t -> 0 whitens h by what
the data say. Cosines, unlike distances, depend on the origin: about a centre m they are those of
``[W (h - m); C^(1/2) (h - m)]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature._eigenbases import (
    DenseEigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
)
from laplace_metric.errors import HeadError
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._locate import is_identity
from laplace_metric.laplace._fitted import Fitted

TINY = 1e-12
"""Bytes of the vectors that are made at once; the length below which one has no direction."""


@dataclass(frozen=True)
class PredictiveVectors:
    """Map from head inputs to predictive vectors.

    Parameters
    ----------
    layout : Layout
        Sizes of the linear head.
    weights : Tensor [Z, A]
        Trained weights [W, b], seen in the basis of ``basis``.
    basis : Tensor [A, A] or None
        R, whose columns are eigenvectors of C; None for the identity.
    variances : Tensor [A]
        Eigenvalues c of C, at the temperature of the predictive posterior.
    spherical : bool
        True if embeddings are directions: then vectors have length 1.
    columns : Tensor [r] or None
        Eigenvectors of C that are kept. None, the default: all A of them.
    data : Tensor [Z, A] or None
        Precision that the data add to each weight, up to a factor, in the basis: the eigenvalues of
        the curvature, which the fit holds anyway. None, the default, of a full posterior: its prior
        is that of the fit.
    centre : Tensor [A] or None
        Head input, seen in the basis, about which vectors are taken. None, the default: 0.
    """

    layout: Layout
    weights: Float[Tensor, "Z A"]
    basis: Float[Tensor, "A A"] | None
    variances: Float[Tensor, " A"]
    spherical: bool
    columns: Int[Tensor, " r"] | None = None
    data: Float[Tensor, "Z A"] | None = None
    centre: Float[Tensor, " A"] | None = None

    @classmethod
    @full_precision()
    @torch.no_grad()
    def of(cls, fitted: Fitted) -> PredictiveVectors:
        """Return the map of a fit; C costs O(Z A), of a full posterior O(Z A P) and A^3.

        Raises
        ------
        HeadError
            If the head is not linear: its inner products have no such form.
        """
        head = fitted.jacobian
        if not head.linear:
            raise HeadError(
                f"head {fitted.head.name!r} is not one linear layer: only of such a head is the "
                "expected inner product one of vectors. Fit with head= the last nn.Linear, or "
                'with head="append".'
            )
        (layout,), basis = head.layouts, fitted.posterior.basis
        weights, data = layout.fold(head.parameters), fitted.posterior.curvature.eigenvalues
        predictive = fitted.predictive_posterior
        if predictive is not fitted.posterior:
            predictive = replace(predictive)  # which is not kept with its spectrum, of P numbers
        spectrum = predictive.spectrum
        if isinstance(basis, IdentityEigenbasis):
            variances, data = layout.fold(spectrum).sum(0), layout.fold(data)
            return cls(layout, weights, None, variances, fitted.spherical, data=data)
        if isinstance(basis, KroneckerEigenbasis):
            (block,) = basis.blocks
            variances, data = block.fold(spectrum).sum(0), block.fold(data)
            right = block.right
            seen = right if is_identity(fitted.head.module) else weights @ right
            return cls(layout, seen, right, variances, fitted.spherical, data=data)
        assert isinstance(basis, DenseEigenbasis)
        rows = layout.fold((basis.vectors * spectrum.sqrt()).mT)  # [P, Z, A]
        rows = rows.flatten(0, 1)
        variances, right = torch.linalg.eigh(rows.mT @ rows)
        return cls(layout, weights @ right, right, variances.clamp_min(0), fitted.spherical)

    def of_rank(
        self, second_moments: Float[Tensor, " A"], rank: int | None, kept: float
    ) -> PredictiveVectors:
        """Keep the columns that matter most to ``h' C h``.

        Parameters
        ----------
        second_moments : Tensor [A]
            Mean square of each head input in the basis.
        rank : int or None
            Number r of columns. None: as few as keep the share ``kept`` of the squared length.
        kept : float in (0, 1]
            Share of the squared length that is kept.
        """
        return self.with_columns(largest_columns(self.variances * second_moments, rank, kept))

    def with_columns(self, columns: Int[Tensor, " r"]) -> PredictiveVectors:
        """Keep these eigenvectors."""
        return replace(self, columns=columns)

    @property
    def takes_priors(self) -> bool:
        """True if ``with_prior`` is known: of a full posterior it is not."""
        return self.data is not None

    def with_prior(self, prior: float) -> PredictiveVectors:
        """Return the map under another prior precision.

        Parameters
        ----------
        prior : float > 0
            Prior precision t, in units of the mean precision that the data add to a weight.
        """
        assert self.data is not None
        scale = self.data.mean().clamp_min(torch.finfo(self.data.dtype).tiny)
        variances = (1 / (self.data / scale + prior)).sum(0)
        return replace(self, variances=variances.to(self.variances))

    def about(self, centre: Float[Tensor, " A"] | None) -> PredictiveVectors:
        """Return the map about a head input, seen in the basis; None: about 0."""
        return replace(self, centre=centre)

    def as_directions(self) -> PredictiveVectors:
        """Return the map whose vectors have length 1, so that their cosines rank."""
        return replace(self, spherical=True)

    def seen(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N A"]:
        """Return head inputs with a 1 for the bias, in the basis."""
        x = self.layout.augment(h)
        return x if self.basis is None else x @ self.basis

    def head_inputs(self, x: Float[Tensor, "N A"]) -> Float[Tensor, "N D"]:
        """Return the head inputs that ``seen`` was given."""
        h = x if self.basis is None else x @ self.basis.mT
        return h[:, : self.layout.n_features]

    def __call__(self, x: Float[Tensor, "N A"], factor: float = 1.0) -> Float[Tensor, "N Z_plus_r"]:
        """Return v [N, Z + r] of head inputs seen in the basis.

        Parameters
        ----------
        x : Tensor [N, A]
            Result of ``seen``.
        factor : float >= 0
            Temperature, in units of that of ``Fitted.predictive_posterior``. Default: 1.
        """
        root = (factor * self.variances).sqrt()
        root = root if self.columns is None else root[self.columns]
        n_outputs = len(self.weights)
        v = x.new_empty(len(x), n_outputs + len(root))
        for rows in blocks(len(v), v.shape[1] * v.element_size()):  # no second array of this size
            part, block = x[rows], v[rows]
            part = part if self.centre is None else part - self.centre
            block[:, :n_outputs] = part @ self.weights.mT
            own = part if self.columns is None else part[:, self.columns]
            block[:, n_outputs:] = own * root
            if self.spherical:
                block /= block.norm(dim=1, keepdim=True).clamp_min(TINY)
        return v

    def grams(self, x: Float[Tensor, "n A"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        """Return inner products of z, and of C^(1/2) h, whose sum is that of the vectors."""
        z = x @ self.weights.mT
        return z @ z.mT, (x * self.variances) @ x.mT

    def lengths(self, x: Float[Tensor, "N A"]) -> tuple[float, float, Tensor]:
        """Return the mean of ``|z|^2`` and of ``h' C h``, and the mean square of each input [A]."""
        x = x if self.centre is None else x - self.centre
        squares = x.square().mean(0)
        z = x @ self.weights.mT
        return float(z.square().sum(1).mean()), float(self.variances @ squares), squares


def largest_columns(
    energy: Float[Tensor, " A"], rank: int | None, kept: float
) -> Int[Tensor, " r"]:
    """Return the columns of the largest energies, ``rank`` of them, or those of a share of all."""
    order = energy.double().argsort(descending=True, stable=True)
    if rank is None:
        reached = energy.double()[order].cumsum(0) >= kept * energy.double().sum()
        rank = int((~reached).sum()) + 1
    return order[: min(rank, len(order))]
