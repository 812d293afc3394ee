"""Honest uncertainty for any trained metric-learning embedder.

A value flows one way, and each arrow is one room that knows only the room before it::

    loader -> head inputs h   heads, features     which layer, what follows it, h [N, D]
           -> curvature       contrastive         class sums or pairs -> diag(H) [Z, D']
           -> posterior       curvature, prior    positivity step, n_effective, prior precision
           -> Embedding       distributions       mean, variance, samples, concentration
           -> numbers         evaluation          retrieval, OOD, sparsification, calibration
"""

from laplace_metric.contract import ProbabilisticEmbedder
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.embedding import Embedding
from laplace_metric.errors import LaplaceMetricError, LaplaceMetricWarning

__version__ = "0.1.0"

__all__ = [
    "Embedding",
    "LaplaceEmbedder",
    "LaplaceMetricError",
    "LaplaceMetricWarning",
    "ProbabilisticEmbedder",
    "__version__",
]
