"""The contrastive Gauss-Newton curvature: which pairs, in which geometry, in which structure.

``contrast`` says what is meant and ``targets`` weigh its pairs; ``sums`` say what is summed,
``passes`` read the points and end in ``statistics``; ``pairs`` and ``ggn`` make programs of them.
"""

from laplace_metric.contrastive.approximations import APPROXIMATIONS, Approximation
from laplace_metric.contrastive.class_sums import ClassSums
from laplace_metric.contrastive.contrast import Contrast
from laplace_metric.contrastive.geometry import DISTANCES, Geometry
from laplace_metric.contrastive.ggn import (
    all_pairs_curvature,
    batch_curvature,
    curvature_program,
    margin_columns,
)
from laplace_metric.contrastive.passes import Pass, Program, advance, drive, run
from laplace_metric.contrastive.statistics import Statistics, digest
from laplace_metric.contrastive.targets import column_groups

__all__ = [
    "APPROXIMATIONS",
    "DISTANCES",
    "Approximation",
    "ClassSums",
    "Contrast",
    "Geometry",
    "Pass",
    "Program",
    "Statistics",
    "advance",
    "all_pairs_curvature",
    "batch_curvature",
    "column_groups",
    "curvature_program",
    "digest",
    "drive",
    "margin_columns",
    "run",
]
