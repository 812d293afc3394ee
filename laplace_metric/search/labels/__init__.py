"""What an index says of labels: those of queries, sets that hold them, and its own that look wrong.

The labels themselves are read in ``_items``, the probabilities are those of ``match``.
"""

from laplace_metric.search.labels._classify import CalibratedAnswers, Classification
from laplace_metric.search.labels._label_sets import LabelSets, warn_if_everything
from laplace_metric.search.labels._review import LabelReview, reviewed

__all__ = [
    "CalibratedAnswers",
    "Classification",
    "LabelReview",
    "LabelSets",
    "reviewed",
    "warn_if_everything",
]
