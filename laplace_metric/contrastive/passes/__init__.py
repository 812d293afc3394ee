"""Readings of the points, one file a kind: what each reads, what it sums, what is checked."""

from laplace_metric.contrastive.passes.checks import check_two_classes
from laplace_metric.contrastive.passes.class_sums import ClassSumsPass
from laplace_metric.contrastive.passes.classes import ClassesPass, class_chunks
from laplace_metric.contrastive.passes.points import PointsPass
from laplace_metric.contrastive.passes.protocol import Pass, Program, advance, drive, run

__all__ = [
    "ClassSumsPass",
    "ClassesPass",
    "Pass",
    "PointsPass",
    "Program",
    "advance",
    "check_two_classes",
    "class_chunks",
    "drive",
    "run",
]
