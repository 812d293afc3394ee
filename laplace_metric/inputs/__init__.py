"""What users pass, read once: arrays, frames, texts, loaders, data sets, labels and class codes."""

from laplace_metric.inputs._batches import ModelInput, read_batch
from laplace_metric.inputs._inputs import Batch, Inputs, read_inputs, read_items, read_loader
from laplace_metric.inputs._vectors import check_no_texts, read_vectors

__all__ = [
    "Batch",
    "Inputs",
    "ModelInput",
    "check_no_texts",
    "read_batch",
    "read_inputs",
    "read_items",
    "read_loader",
    "read_vectors",
]
