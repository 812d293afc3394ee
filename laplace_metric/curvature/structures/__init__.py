"""Structures of the curvature: how H is summed, decomposed, inverted and sampled."""

from laplace_metric.curvature.structures._spectral import (
    NEGATIVE_SHARE,
    POSITIVITY,
    DenseEigenbasis,
    Eigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
    SpectralCurvature,
    check_finite_curvature,
)
from laplace_metric.curvature.structures._sums import (
    STRUCTURES,
    Curvature,
    DiagCurvature,
    FullCurvature,
    KronCurvature,
    KroneckerFactors,
    balanced,
    check_memory,
)

__all__ = [
    "NEGATIVE_SHARE",
    "POSITIVITY",
    "STRUCTURES",
    "Curvature",
    "DenseEigenbasis",
    "DiagCurvature",
    "Eigenbasis",
    "FullCurvature",
    "IdentityEigenbasis",
    "KronCurvature",
    "KroneckerEigenbasis",
    "KroneckerEigenblock",
    "KroneckerFactors",
    "SpectralCurvature",
    "balanced",
    "check_finite_curvature",
    "check_memory",
]
