"""Structures of the curvature: how H is summed, decomposed, inverted and sampled."""

from laplace_metric.curvature.structures._bases import (
    Basis,
    DenseBasis,
    IdentityBasis,
    KroneckerBasis,
    KroneckerBlock,
)
from laplace_metric.curvature.structures._memory import check_memory
from laplace_metric.curvature.structures._spectral import POSITIVITY, SpectralCurvature
from laplace_metric.curvature.structures._sums import (
    STRUCTURES,
    CurvatureSum,
    DenseSum,
    DiagonalSum,
    KroneckerFactors,
    KroneckerSum,
    balanced,
)

__all__ = [
    "POSITIVITY",
    "STRUCTURES",
    "Basis",
    "CurvatureSum",
    "DenseBasis",
    "DenseSum",
    "DiagonalSum",
    "IdentityBasis",
    "KroneckerBasis",
    "KroneckerBlock",
    "KroneckerFactors",
    "KroneckerSum",
    "SpectralCurvature",
    "balanced",
    "check_memory",
]
