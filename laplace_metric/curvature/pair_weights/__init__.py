"""The weights y_ij of the contrastive loss: by class, inside a margin, or of mined tuples."""

from laplace_metric.curvature.pair_weights._by_class import (
    ClassPairWeights,
    PairCounts,
    PairWeights,
    class_weights,
)
from laplace_metric.curvature.pair_weights._margin import MarginPairWeights, column_groups
from laplace_metric.curvature.pair_weights._mined import mined_pair_weights

__all__ = [
    "ClassPairWeights",
    "MarginPairWeights",
    "PairCounts",
    "PairWeights",
    "class_weights",
    "column_groups",
    "mined_pair_weights",
]
