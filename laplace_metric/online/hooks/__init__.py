"""A posterior inside the training loops of others: fitted and measured as their models train.

``LaplaceTester`` for trainers of pytorch-metric-learning, ``lightning_callback`` for Lightning.
"""

from laplace_metric.online.hooks._lightning import PosteriorCallback, lightning_callback
from laplace_metric.online.hooks._numbers import Seen, posterior_numbers, seen_by
from laplace_metric.online.hooks._tester import LaplaceTester

__all__ = [
    "LaplaceTester",
    "PosteriorCallback",
    "Seen",
    "lightning_callback",
    "posterior_numbers",
    "seen_by",
]
