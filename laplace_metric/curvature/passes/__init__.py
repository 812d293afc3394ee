"""Passes over the points: what each reads, what it sums, how merged sums are audited."""

from laplace_metric.curvature.passes._pass import Pass, PassSchedule, execute, next_pass
from laplace_metric.curvature.passes._passes import (
    ClassesPass,
    ClassSumsPass,
    PointsPass,
    class_chunks,
)

__all__ = [
    "ClassSumsPass",
    "ClassesPass",
    "Pass",
    "PassSchedule",
    "PointsPass",
    "class_chunks",
    "execute",
    "next_pass",
]
