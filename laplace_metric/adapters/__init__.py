"""Models that do not return one tensor [B, Z] when they are called, as modules that do.

An adapter holds the model and changes nothing about it: weights, modes, hooks and gradients stay
as they are, and its parameters are the model's own.
"""

from laplace_metric.adapters.call import Call
from laplace_metric.adapters.pooled import POOLINGS, Pooled
from laplace_metric.adapters.sentences import Sentences

__all__ = ["POOLINGS", "Call", "Pooled", "Sentences"]
