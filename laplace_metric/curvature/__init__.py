"""The contrastive Gauss-Newton curvature H: which pairs, in which geometry, in which structure.

Begin with ``by_class``: derivation, equations and code for a linear head, on one page. Beside it:
``_loss`` says what is differentiated, ``pair_weights`` weigh pairs that class sums cannot,
``terms`` say what is summed, ``passes`` read the points, ``structures`` hold H, and ``_ggn`` makes
a schedule of passes for every kind of pairs and every structure.
"""

from laplace_metric.curvature._ggn import (
    AllPairs,
    all_pairs_curvature,
    batch_curvature,
    curvature_passes,
    margin_columns,
)
from laplace_metric.curvature._loss import (
    APPROXIMATIONS,
    DISTANCES,
    ContrastiveLoss,
    Geometry,
    GGNApproximation,
)
from laplace_metric.curvature._nearest_kronecker import nearest_kronecker
from laplace_metric.curvature._statistics import ClassSums, Statistics, mirrored, upper_gram
from laplace_metric.curvature.pair_weights import column_groups
from laplace_metric.curvature.passes import Pass, PassSchedule, execute, next_pass

__all__ = [
    "APPROXIMATIONS",
    "DISTANCES",
    "AllPairs",
    "ClassSums",
    "ContrastiveLoss",
    "GGNApproximation",
    "Geometry",
    "Pass",
    "PassSchedule",
    "Statistics",
    "all_pairs_curvature",
    "batch_curvature",
    "column_groups",
    "curvature_passes",
    "execute",
    "margin_columns",
    "mirrored",
    "nearest_kronecker",
    "next_pass",
    "upper_gram",
]
