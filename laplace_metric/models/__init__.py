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
    rows_of_batch,
    shares_memory,
    to_device,
    unwrapped,
)
from laplace_metric.models._reading import (
    ItemBatches,
    check_names,
    class_codes,
    is_rows,
    items_of,
    plain,
    yields_items,
)

__all__ = [
    "Call",
    "Inputs",
    "ItemBatches",
    "Pooled",
    "Precomputed",
    "Sentences",
    "call_model",
    "check_labels",
    "check_names",
    "class_codes",
    "device_of",
    "evaluation_mode",
    "input_batches",
    "is_rows",
    "items_of",
    "labelled_batches",
    "labels_of",
    "plain",
    "rows_of_batch",
    "shares_memory",
    "to_device",
    "unwrapped",
    "yields_items",
]
