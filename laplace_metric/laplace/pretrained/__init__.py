"""Folders that a hub can hold: a posterior, the weights of its model, and a model card."""

from laplace_metric.laplace.pretrained._mixin import Pretrained

__all__ = ["Pretrained"]
