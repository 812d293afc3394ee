"""Summands: what is summed over points and pairs, one file a structure."""

from laplace_metric.curvature.terms._diagonal import LayeredDiagonal
from laplace_metric.curvature.terms._general import (
    GeneralDense,
    GeneralDiagonal,
    LinearDense,
    weighted_blocks,
)
from laplace_metric.curvature.terms._kronecker import LeftContraction, RightContraction
from laplace_metric.curvature.terms._protocol import CurvatureTerm, Terms, Tile, add_terms

__all__ = [
    "CurvatureTerm",
    "GeneralDense",
    "GeneralDiagonal",
    "LayeredDiagonal",
    "LeftContraction",
    "LinearDense",
    "RightContraction",
    "Terms",
    "Tile",
    "add_terms",
    "weighted_blocks",
]
