"""The full structure: H [P, P], for heads small enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.curvature.bases import DenseBasis
from laplace_metric.curvature.spectral import (
    POSITIVITY,
    SpectralCurvature,
    check_finite_curvature,
)
from laplace_metric.layout import Layout


@dataclass(frozen=True)
class DenseSum:
    """H [P, P] float64, symmetric, before the positivity step.

    Examples
    --------
    >>> DenseSum(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).decompose().negative_fraction
    0.25
    """

    matrix: Tensor

    @classmethod
    def zeros(cls, layouts: Sequence[Layout], device: torch.device | None = None) -> DenseSum:
        """H = 0 for layers of these layouts."""
        size = sum(layout.n_parameters for layout in layouts)
        return cls(torch.zeros(size, size, dtype=torch.float64, device=device))

    def __add__(self, other: DenseSum) -> DenseSum:
        return DenseSum(self.matrix + other.matrix)

    def scaled(self, factor: float) -> DenseSum:
        """factor * H."""
        return DenseSum(factor * self.matrix)

    def decompose(self, positivity: str = "clip") -> SpectralCurvature:
        """The positivity step on the eigenvalues. O(P^3), once."""
        check_finite_curvature(self.matrix)
        eigenvalues, vectors = torch.linalg.eigh(self.matrix)
        return POSITIVITY[positivity](DenseBasis(vectors.contiguous()), eigenvalues)
