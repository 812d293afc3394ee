"""The contrastive Gauss-Newton curvature: which pairs, in which geometry, in which structure.

``contrast`` says what is meant, ``pairs`` go through the points, ``sums`` add up; ``ggn`` joins.
"""

from laplace_metric.contrastive.approximations import APPROXIMATIONS, Approximation
from laplace_metric.contrastive.contrast import Contrast
from laplace_metric.contrastive.geometry import DISTANCES, Geometry
from laplace_metric.contrastive.ggn import all_pairs_curvature, batch_curvature
from laplace_metric.contrastive.statistics import ClassSums

__all__ = [
    "APPROXIMATIONS",
    "DISTANCES",
    "Approximation",
    "ClassSums",
    "Contrast",
    "Geometry",
    "all_pairs_curvature",
    "batch_curvature",
]
