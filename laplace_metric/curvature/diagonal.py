"""The diagonal structure: diag(H) as a sum that adds up over batches and shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.curvature.bases import IdentityBasis
from laplace_metric.curvature.spectral import POSITIVITY, SpectralCurvature
from laplace_metric.layout import Layout


@dataclass(frozen=True)
class DiagonalSum:
    """diag(H) [P] float64 of any sign, before the positivity step.

    Examples
    --------
    >>> (DiagonalSum(torch.tensor([1.0, 2.0])) + DiagonalSum(torch.ones(2))).values
    tensor([2., 3.])
    """

    values: Tensor
    standard_error: Tensor | None = None

    @classmethod
    def zeros(cls, layouts: Sequence[Layout], device: torch.device | None = None) -> DiagonalSum:
        """H = 0 for layers of these layouts."""
        size = sum(layout.n_parameters for layout in layouts)
        return cls(torch.zeros(size, dtype=torch.float64, device=device))

    def __add__(self, other: DiagonalSum) -> DiagonalSum:
        return DiagonalSum(self.values + other.values)

    def scaled(self, factor: float) -> DiagonalSum:
        """factor * H."""
        error = None if self.standard_error is None else abs(factor) * self.standard_error
        return DiagonalSum(factor * self.values, error)

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step: an elementwise ReLU, or the absolute values."""
        return POSITIVITY[positivity](IdentityBasis(), self.values, self.standard_error)
