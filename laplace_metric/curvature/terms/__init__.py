"""Terms: what is summed over points and pairs, for each structure."""

from laplace_metric.curvature._statistics import Terms, add_terms
from laplace_metric.curvature.terms._contractions import (
    KroneckerRefinement,
    LeftContraction,
    RightContraction,
)
from laplace_metric.curvature.terms._general import GeneralDense, GeneralDiagonal, LinearDense
from laplace_metric.curvature.terms._layered import LayeredDiagonal
from laplace_metric.curvature.terms._protocol import CurvatureTerm, Tile

__all__ = [
    "CurvatureTerm",
    "GeneralDense",
    "GeneralDiagonal",
    "KroneckerRefinement",
    "LayeredDiagonal",
    "LeftContraction",
    "LinearDense",
    "RightContraction",
    "Terms",
    "Tile",
    "add_terms",
]
