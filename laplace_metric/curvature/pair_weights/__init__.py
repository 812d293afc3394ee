"""The weights y_ij of the contrastive loss: by class, inside a margin, or of mined tuples."""

from laplace_metric.curvature.pair_weights._by_class import (
    ClassTargets,
    PairCounts,
    Targets,
    class_weights,
)
from laplace_metric.curvature.pair_weights._margin import MarginTargets, column_groups
from laplace_metric.curvature.pair_weights._mined import tuple_targets

__all__ = [
    "ClassTargets",
    "MarginTargets",
    "PairCounts",
    "Targets",
    "class_weights",
    "column_groups",
    "tuple_targets",
]
