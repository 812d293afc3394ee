"""The curvature after the positivity step: one value for all structures, ``H = Q diag(l) Q^T``.

Q is orthogonal, one kind of eigenbasis for each structure. With the posterior precision
``P = n_eff H + tau I`` and ``p = n_eff l + tau``, all is elementwise in ``c = Q^T v``:

    v^T P^-1 v = sum c^2 / p      log det P = sum log p      N(0, P^-1): Q e / sqrt(p)

One decomposition a fit; every prior precision after that is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.heads._layers import Layout

DENSE_LIMIT_BYTES = 2**30
NEGATIVE_SHARE = 0.2
"""Of the curvature, from which on its absolute values are a heuristic and no approximation."""


@dataclass(frozen=True)
class IdentityEigenbasis:
    """Q = I: the diagonal structure."""

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return vectors

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return coordinates

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return values

    def to(self, like: Tensor) -> IdentityEigenbasis:
        return self


@dataclass(frozen=True)
class DenseEigenbasis:
    """Q itself [P, P]: the full structure."""

    vectors: Tensor

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return vectors @ self.vectors

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return coordinates @ self.vectors.mT

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self.vectors.square() @ values

    def to(self, like: Tensor) -> DenseEigenbasis:
        return DenseEigenbasis(self.vectors.to(like))


@dataclass(frozen=True)
class KroneckerEigenblock:
    """``Q_S (x) Q_A`` of one linear layer: left [O, O] over outputs, right [A, A] over inputs."""

    left: Tensor
    right: Tensor
    layout: Layout

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return (self.left.mT @ self.layout.fold(vectors) @ self.right).flatten(-2)

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        return self.layout.flatten(self.left @ self.fold(coordinates) @ self.right.mT)

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self.layout.flatten(self.left.square() @ self.fold(values) @ self.right.square().mT)

    def fold(self, coordinates: Tensor) -> Tensor:
        """Coordinates [..., P] as [..., O, A]."""
        return coordinates.unflatten(-1, (len(self.left), len(self.right)))


@dataclass(frozen=True)
class KroneckerEigenbasis:
    """One ``Q_S (x) Q_A`` a layer, no coupling between layers: the kron structure."""

    blocks: tuple[KroneckerEigenblock, ...]

    @property
    def sizes(self) -> list[int]:
        """Parameters of each layer."""
        return [block.layout.n_parameters for block in self.blocks]

    def to_eigenbasis(self, vectors: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        parts = vectors.split(self.sizes, dim=-1)
        return torch.cat(
            [b.to_eigenbasis(v) for b, v in zip(self.blocks, parts, strict=True)], dim=-1
        )

    def from_eigenbasis(self, coordinates: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
        parts = coordinates.split(self.sizes, dim=-1)
        return torch.cat(
            [b.from_eigenbasis(c) for b, c in zip(self.blocks, parts, strict=True)], dim=-1
        )

    def diagonal(self, values: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        parts = values.split(self.sizes)
        return torch.cat([b.diagonal(v) for b, v in zip(self.blocks, parts, strict=True)])

    def to(self, like: Tensor) -> KroneckerEigenbasis:
        return KroneckerEigenbasis(
            tuple(
                KroneckerEigenblock(b.left.to(like), b.right.to(like), b.layout)
                for b in self.blocks
            )
        )


Eigenbasis = IdentityEigenbasis | DenseEigenbasis | KroneckerEigenbasis
"""Q [P, P] with orthonormal columns, never written out unless it is dense.

``to_eigenbasis``: Q^T v; ``from_eigenbasis``: Q c; ``diagonal``: diag(Q diag(values) Q^T).
"""


@dataclass(frozen=True)
class SpectralCurvature:
    """A positive semi-definite contrastive Gauss-Newton matrix, averaged over pairs.

    Parameters
    ----------
    basis : Eigenbasis
        Q; parameters are in the order of ``torch.nn.utils.parameters_to_vector``.
    eigenvalues : Tensor [P] float64, >= 0
    negative_fraction : float in [0, 1]
        Share of the absolute spectrum that was negative before the positivity step; 0 for H = 0.
    standard_error : Tensor [P] or None
        Of the diagonal before clipping, where a reference subset estimated it.

    Examples
    --------
    >>> from laplace_metric.curvature._spectral import IdentityEigenbasis
    >>> SpectralCurvature.clip(IdentityEigenbasis(), torch.tensor([3.0, -1.0])).negative_fraction
    0.25
    """

    basis: Eigenbasis
    eigenvalues: Tensor
    negative_fraction: float
    standard_error: Tensor | None = None

    @classmethod
    def clip(
        cls, basis: Eigenbasis, eigenvalues: Tensor, standard_error: Tensor | None = None
    ) -> SpectralCurvature:
        """Positive by projection: negative eigenvalues become 0.

        For the diagonal structure this is the elementwise ReLU of Warburg et al. (2023, eq 98),
        else the projection on the positive semi-definite cone.

        Raises
        ------
        NonFiniteError
            If the curvature overflowed.
        """
        negative = negative_share(eigenvalues)
        return cls(basis, eigenvalues.double().clamp_min(0), negative, standard_error)

    @classmethod
    def absolute(
        cls, basis: Eigenbasis, eigenvalues: Tensor, standard_error: Tensor | None = None
    ) -> SpectralCurvature:
        """Positive by magnitude, ``|H|`` (Dauphin et al. 2014, section 4).

        Clipped to 0, the few directions in which the loss curves down are as free as the prior
        lets them, and their variance hides every other; a Gaussian as wide as the loss takes to
        change by a half, up or down, has 1 / |l| there. That is a heuristic for ranking inputs, not
        Laplace's approximation: where l < 0 there is no maximum to approximate. Do not use it for
        the evidence, or where much of H is negative (``negative_fraction``).

        Raises
        ------
        NonFiniteError
            If the curvature overflowed.

        Examples
        --------
        >>> from laplace_metric.curvature._spectral import IdentityEigenbasis
        >>> SpectralCurvature.absolute(IdentityEigenbasis(), torch.tensor([3.0, -1.0])).eigenvalues
        tensor([3., 1.], dtype=torch.float64)
        """
        negative = negative_share(eigenvalues)
        return cls(basis, eigenvalues.double().abs(), negative, standard_error)

    @property
    def n_parameters(self) -> int:
        """P."""
        return len(self.eigenvalues)

    def diagonal(self) -> Float[Tensor, " P"]:
        """diag(H) [P], before n_effective and the prior precision."""
        return self.basis.diagonal(self.eigenvalues)

    def to_dense(self) -> Float[Tensor, "P P"]:
        """H [P, P].

        Raises
        ------
        InputError
            If the matrix would need more than 1 GiB.
        """
        needed = 8 * self.n_parameters**2
        if needed > DENSE_LIMIT_BYTES:
            raise InputError(
                f"a dense {self.n_parameters} x {self.n_parameters} matrix needs {needed:,} bytes: "
                "use diagonal()."
            )
        q = self.basis.to_eigenbasis(
            torch.eye(self.n_parameters).to(self.eigenvalues)
        )  # rows: Q^T e_i
        return q @ (self.eigenvalues[:, None] * q.mT)

    def precision(self, n_effective: float, prior_precision: float) -> Float[Tensor, " P"]:
        """Eigenvalues ``p = n_eff l + prior_precision`` [P] of the posterior precision."""
        return n_effective * self.eigenvalues + prior_precision

    def log_determinant(self, n_effective: float, prior_precision: float) -> float:
        """``log det(n_eff H + prior_precision I)``."""
        return float(self.precision(n_effective, prior_precision).log().sum())

    def to(self, device: torch.device) -> SpectralCurvature:
        """On another device."""
        values = self.eigenvalues.to(device)
        error = None if self.standard_error is None else self.standard_error.to(device)
        return replace(self, basis=self.basis.to(values), eigenvalues=values, standard_error=error)


def check_finite_curvature(values: Tensor) -> None:
    """Raise ``NonFiniteError`` if a curvature overflowed."""
    if not torch.isfinite(values).all():
        raise NonFiniteError(
            "the curvature is not finite: features or embedding norms are too large or too "
            "small for their dtype. Fit in float64 (model.double()) or rescale the features."
        )


def negative_share(eigenvalues: Tensor) -> float:
    """Compute the share of negative eigenvalues in the absolute sum of the finite ones."""
    check_finite_curvature(eigenvalues)
    mass = float(eigenvalues.abs().sum())
    return float(eigenvalues.clamp_max(0).abs().sum()) / mass if mass > 0 else 0.0


POSITIVITY = {"absolute": SpectralCurvature.absolute, "clip": SpectralCurvature.clip}
"""How an indefinite curvature becomes a precision."""
