"""The model: adapters around it, how it is called, and a store for what it gives."""

from laplace_metric.models._call import Call
from laplace_metric.models._pooled import Pooled
from laplace_metric.models._precomputed import Precomputed
from laplace_metric.models._precomputed_layers import PrecomputedLayers
from laplace_metric.models._sentences import Sentences

__all__ = [
    "Call",
    "Pooled",
    "Precomputed",
    "PrecomputedLayers",
    "Sentences",
]
