"""Readings of the points, one file a kind: what each reads, what it sums, what is checked."""

from laplace_metric.curvature.passes._checks import check_two_classes
from laplace_metric.curvature.passes._classes import ClassesPass, ClassSumsPass, class_chunks
from laplace_metric.curvature.passes._pass import Pass, PassSchedule, advance, drive, run
from laplace_metric.curvature.passes._points import PointsPass

__all__ = [
    "ClassSumsPass",
    "ClassesPass",
    "Pass",
    "PassSchedule",
    "PointsPass",
    "advance",
    "check_two_classes",
    "class_chunks",
    "drive",
    "run",
]
