"""Which pairs count, and how their sums are fed to an accumulator of ``sums``: one file a kind."""

from laplace_metric.contrastive.pairs.by_class import ClassPairs, collect_class_sums
from laplace_metric.contrastive.pairs.margin import MarginPairs, reference_columns
from laplace_metric.contrastive.pairs.protocol import PairSource, feed_all
from laplace_metric.contrastive.pairs.tuples import TuplePairs

__all__ = [
    "ClassPairs",
    "MarginPairs",
    "PairSource",
    "TuplePairs",
    "collect_class_sums",
    "feed_all",
    "reference_columns",
]
