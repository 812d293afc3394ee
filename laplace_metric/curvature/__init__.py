"""The contrastive Gauss-Newton curvature: which pairs, in which geometry, in which structure.

``loss`` says what is meant and ``targets`` weigh its pairs; ``sums`` say what is summed,
``passes`` read the points and end in ``statistics``; ``pairs`` and ``ggn`` make programs of them.
"""

from laplace_metric._utils.files import digest
from laplace_metric.curvature._geometry import DISTANCES, Geometry, PointBlocks, Points
from laplace_metric.curvature._ggn import (
    all_pairs_curvature,
    batch_curvature,
    curvature_passes,
    margin_columns,
    population_pairs,
)
from laplace_metric.curvature._loss import APPROXIMATIONS, ContrastiveLoss, GGNApproximation
from laplace_metric.curvature._nearest_kronecker import nearest_kronecker
from laplace_metric.curvature._statistics import ClassSums, Statistics
from laplace_metric.curvature.pair_weights._margin import column_groups
from laplace_metric.curvature.passes._pass import Pass, PassSchedule, advance, drive, run

__all__ = [
    "APPROXIMATIONS",
    "DISTANCES",
    "ClassSums",
    "ContrastiveLoss",
    "GGNApproximation",
    "Geometry",
    "Pass",
    "PassSchedule",
    "PointBlocks",
    "Points",
    "Statistics",
    "advance",
    "all_pairs_curvature",
    "batch_curvature",
    "column_groups",
    "curvature_passes",
    "digest",
    "drive",
    "margin_columns",
    "nearest_kronecker",
    "population_pairs",
    "run",
]
