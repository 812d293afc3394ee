"""Pair targets: y_ij of each kind of pairs, and their sums as the points see them."""

from laplace_metric.contrastive.targets.by_class import ClassTargets
from laplace_metric.contrastive.targets.counts import PairCounts, class_weights
from laplace_metric.contrastive.targets.margin import MarginTargets, column_groups
from laplace_metric.contrastive.targets.protocol import Targets
from laplace_metric.contrastive.targets.tuples import tuple_targets

__all__ = [
    "ClassTargets",
    "MarginTargets",
    "PairCounts",
    "Targets",
    "class_weights",
    "column_groups",
    "tuple_targets",
]
