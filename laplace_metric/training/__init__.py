"""One training loop for embedders, plain or with a posterior."""

from laplace_metric.training.plain import train_embedder

__all__ = ["train_embedder"]
