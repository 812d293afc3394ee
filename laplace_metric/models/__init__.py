"""The network: batches in, adapters around it, the head inside it, its Jacobian, its inputs."""

from laplace_metric.models._adapters import Call, Pooled, Precomputed, Sentences
from laplace_metric.models._calling import (
    Inputs,
    call_model,
    check_labels,
    device_of,
    evaluation_mode,
    input_batches,
    labelled_batches,
    labels_of,
    shares_memory,
    to_device,
    unwrapped,
)

__all__ = [
    "Call",
    "Inputs",
    "Pooled",
    "Precomputed",
    "Sentences",
    "call_model",
    "check_labels",
    "device_of",
    "evaluation_mode",
    "input_batches",
    "labelled_batches",
    "labels_of",
    "shares_memory",
    "to_device",
    "unwrapped",
]
