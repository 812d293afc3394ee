"""The network: batches in, adapters around it, the head inside it, its Jacobian, its inputs."""

from laplace_metric.models._adapters import Call, Pooled, Precomputed, Sentences

__all__ = [
    "Call",
    "Pooled",
    "Precomputed",
    "Sentences",
]
