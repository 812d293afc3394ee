"""Structures of the curvature: how H is summed, decomposed, inverted and sampled."""

from laplace_metric.curvature.bases import (
    Basis,
    DenseBasis,
    IdentityBasis,
    KroneckerBasis,
    KroneckerBlock,
)
from laplace_metric.curvature.dense import DenseSum
from laplace_metric.curvature.diagonal import DiagonalSum
from laplace_metric.curvature.kronecker import KroneckerFactors, KroneckerSum
from laplace_metric.curvature.spectral import POSITIVITY, SpectralCurvature

CurvatureSum = DiagonalSum | KroneckerSum | DenseSum
"""H before the positivity step: zeros, ``+``, ``scaled``, ``decompose``."""

STRUCTURES: dict[str, type[CurvatureSum]] = {
    "diag": DiagonalSum,
    "kron": KroneckerSum,
    "full": DenseSum,
}

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
]
