"""The curvature as ``H = Q diag(l) Q^T``, made positive: one value for all structures.

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

from laplace_metric.curvature._eigenbases import Eigenbasis
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.io import saved, unsaved

DENSE_LIMIT_BYTES = 2**30
"""Memory of the largest matrix that ``to_dense`` writes out."""
NEGATIVE_SHARE = 0.2
"""Negative share of the curvature above which ``positivity="absolute"`` is only a heuristic."""
POSITIVITY = {"absolute": Tensor.abs, "clip": Tensor.relu}
"""How an indefinite curvature becomes a precision.

``clip``: by projection, negative eigenvalues become 0. For the diagonal structure this is the
elementwise ReLU of Warburg et al. (2023, eq 98), else the projection on the positive semi-definite
cone.

``absolute``: by magnitude, ``|H|`` (Dauphin et al. 2014, section 4). Clipped to 0, the few
directions in which the loss curves down are as free as the prior lets them, and their variance
hides every other; a Gaussian as wide as the loss takes to change by a half, up or down, has 1 / |l|
there. That is a heuristic for ranking inputs, not Laplace's approximation: where l < 0 there is no
maximum to approximate. Do not use it for the evidence, or where much of H is negative
(``negative_fraction``).
"""


@dataclass(frozen=True)
class SpectralCurvature:
    """A positive semi-definite contrastive Gauss-Newton matrix, averaged over pairs.

    Parameters
    ----------
    basis : Eigenbasis
        Eigenvectors Q; parameters are in the order of ``torch.nn.utils.parameters_to_vector``.
    eigenvalues : Tensor [P] float64, >= 0
        Eigenvalues l, in the order of the columns of Q.
    negative_fraction : float in [0, 1]
        Share of the absolute spectrum that was negative before the positivity step; 0 for H = 0.
    standard_error : Tensor [P] or None
        Standard error of the diagonal before clipping, if a reference subset estimated it. None,
        the default: it was not estimated.

    Examples
    --------
    >>> from laplace_metric.curvature._eigenbases import IdentityEigenbasis
    >>> h = SpectralCurvature.positive(IdentityEigenbasis(), torch.tensor([3.0, -1.0]), "absolute")
    >>> h.eigenvalues, h.negative_fraction
    (tensor([3., 1.], dtype=torch.float64), 0.25)
    """

    basis: Eigenbasis = unsaved()
    eigenvalues: Float[Tensor, " P"] = saved(0)
    negative_fraction: float = unsaved()
    standard_error: Float[Tensor, " P"] | None = saved(0, default=None)

    @classmethod
    def positive(
        cls,
        basis: Eigenbasis,
        eigenvalues: Tensor,
        positivity: str,
        standard_error: Tensor | None = None,
    ) -> SpectralCurvature:
        """Return the curvature after the positivity step.

        Parameters
        ----------
        basis : Eigenbasis
            Eigenvectors Q of the curvature.
        eigenvalues : Tensor [P]
            Eigenvalues of any sign.
        positivity : "absolute" | "clip"
            Rule that makes negative eigenvalues non-negative; see ``POSITIVITY``.
        standard_error : Tensor [P] or None
            Standard error of the diagonal. None, the default: it was not estimated.

        Raises
        ------
        NonFiniteError
            If the curvature overflowed.
        """
        check_finite_curvature(eigenvalues)
        mass = float(eigenvalues.abs().sum())
        negative = float(eigenvalues.clamp_max(0).abs().sum()) / mass if mass > 0 else 0.0
        return cls(basis, POSITIVITY[positivity](eigenvalues.double()), negative, standard_error)

    @property
    def n_parameters(self) -> int:
        """Number P of parameters."""
        return len(self.eigenvalues)

    def diagonal(self) -> Float[Tensor, " P"]:
        """Return diag(H) [P], before n_effective and the prior precision."""
        return self.basis.diagonal(self.eigenvalues)

    def to_dense(self) -> Float[Tensor, "P P"]:
        """Return H [P, P].

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
        identity = torch.eye(self.n_parameters).to(self.eigenvalues)
        q = self.basis.to_eigenbasis(identity)  # rows: Q^T e_i
        return q @ (self.eigenvalues[:, None] * q.mT)

    def precision(self, n_effective: float, prior_precision: float | Tensor) -> Float[Tensor, " P"]:
        """Return eigenvalues ``p = n_eff l + prior_precision`` [P] of the posterior precision."""
        return n_effective * self.eigenvalues + prior_precision

    def to(self, device: torch.device) -> SpectralCurvature:
        """Return this curvature on another device."""
        values = self.eigenvalues.to(device)
        error = None if self.standard_error is None else self.standard_error.to(device)
        return replace(self, basis=self.basis.to(values), eigenvalues=values, standard_error=error)


def check_finite_curvature(values: Tensor) -> None:
    """Raise ``NonFiniteError`` if a curvature overflowed."""
    if not torch.isfinite(values).all():
        raise NonFiniteError(
            "the curvature is not finite: features or embedding norms are too large or too "
            "small for their dtype. Pass vectors of float64, or model.double(), or rescale them."
        )
