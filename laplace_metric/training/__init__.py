"""One training loop for embedders, plain or with a posterior."""

from laplace_metric.training._loop import train_embedder, train_epochs

__all__ = [
    "train_embedder",
    "train_epochs",
]
