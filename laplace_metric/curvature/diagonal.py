"""The diagonal curvature after the positivity step, and the Gaussian posterior it gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import InputError, NonFiniteError

DENSE_LIMIT_BYTES = 2**30


@dataclass(frozen=True)
class DiagonalCurvature:
    """diag(H) >= 0 of the contrastive Gauss-Newton matrix, averaged over pairs.

    Parameters
    ----------
    values : Tensor [P] float64
        In the order of ``torch.nn.utils.parameters_to_vector(head.parameters())``.
    clipped_fraction : float in [0, 1]
        Share of the absolute curvature that was negative and set to zero; 0 for H = 0.
    standard_error : Tensor [P] or None
        Of ``values`` before clipping, where a reference subset estimated them.

    Examples
    --------
    >>> DiagonalCurvature.clip(torch.tensor([3.0, -1.0])).clipped_fraction
    0.25
    """

    values: Tensor
    clipped_fraction: float
    standard_error: Tensor | None = None

    @classmethod
    def clip(cls, values: Tensor, standard_error: Tensor | None = None) -> DiagonalCurvature:
        """The positivity step: elementwise ReLU (Warburg et al. 2023, eq 98), with its size.

        Raises
        ------
        NonFiniteError
            If the curvature overflowed.
        """
        if not torch.isfinite(values).all():
            raise NonFiniteError(
                "the curvature is not finite: features or embedding norms are too large or too "
                "small for their dtype. Fit in float64 (model.double()) or rescale the features."
            )
        mass = float(values.abs().sum())
        clipped = float(values.clamp_max(0).abs().sum()) / mass if mass > 0 else 0.0
        return cls(values.double().clamp_min(0), clipped, standard_error)

    @property
    def n_parameters(self) -> int:
        """P."""
        return len(self.values)

    def diagonal(self) -> Tensor:
        """diag(H) [P], before n_effective and the prior precision."""
        return self.values

    def to_dense(self) -> Tensor:
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
        return self.values.diag()

    def precision(self, n_effective: float, prior_precision: float) -> Tensor:
        """``n_eff diag(H) + prior_precision`` [P]."""
        return n_effective * self.values + prior_precision

    def variance(self, n_effective: float, prior_precision: float) -> Tensor:
        """Diagonal of the posterior covariance [P]."""
        return self.precision(n_effective, prior_precision).reciprocal()

    def log_determinant(self, n_effective: float, prior_precision: float) -> float:
        """``log det(n_eff H + prior_precision I)``."""
        return float(self.precision(n_effective, prior_precision).log().sum())
