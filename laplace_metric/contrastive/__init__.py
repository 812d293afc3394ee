"""The contrastive Gauss-Newton curvature: pairs, geometry, approximations, class sums."""

from laplace_metric.contrastive.approximations import APPROXIMATIONS, Approximation
from laplace_metric.contrastive.geometry import DISTANCES, Geometry
from laplace_metric.contrastive.ggn import (
    Contrast,
    Curvature,
    all_pairs_curvature,
    batch_curvature,
)
from laplace_metric.contrastive.statistics import ClassSums

__all__ = [
    "APPROXIMATIONS",
    "DISTANCES",
    "Approximation",
    "ClassSums",
    "Contrast",
    "Curvature",
    "Geometry",
    "all_pairs_curvature",
    "batch_curvature",
]
