"""Weights y_ij of the contrastive loss that class sums cannot give: inside a margin, or mined."""

from laplace_metric.curvature.pair_weights._margin import (
    MarginPairWeights,
    PairWeights,
    column_groups,
)
from laplace_metric.curvature.pair_weights._mined import mined_pair_weights

__all__ = ["MarginPairWeights", "PairWeights", "column_groups", "mined_pair_weights"]
