"""A posterior inside the training loops of others: fitted and measured as their models train.

``LaplaceTester`` for trainers of pytorch-metric-learning, ``lightning_callback`` for Lightning.
"""

from laplace_metric.online.hooks._lightning import lightning_callback
from laplace_metric.online.hooks._tester import LaplaceTester

__all__ = [
    "LaplaceTester",
    "lightning_callback",
]
