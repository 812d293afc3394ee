"""For scikit-learn: a transformer and a classifier, for ``Pipeline``, ``GridSearchCV``, ``clone``.

Both are fitted to rows of numbers: embeddings of any encoder, or the inputs of a PyTorch model.
"""

from laplace_metric.search.estimators._classifier import MatchClassifier
from laplace_metric.search.estimators._transformer import LaplaceMetricTransformer

__all__ = ["LaplaceMetricTransformer", "MatchClassifier"]
