"""The network: batches in, adapters around it, the head inside it, its Jacobian, its inputs."""

from laplace_metric.models._adapters import Call, Pooled, Precomputed, Sentences
from laplace_metric.models._batches import (
    Inputs,
    call_model,
    check_labels,
    device_of,
    input_batches,
    labelled_batches,
    labels_of,
    to_device,
)
from laplace_metric.models._modules import evaluation_mode, unwrapped

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
    "to_device",
    "unwrapped",
]
