"""Read the labels of a batch or of all items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.validation import as_array, as_tensor
from laplace_metric.errors import LabelError
from laplace_metric.inputs._arrays import plain
from laplace_metric.inputs._class_names import check_names, check_not_mixed, class_codes, names_of
from laplace_metric.inputs._missing import check_missing
from laplace_metric.inputs._no_data import check_not_tags


def check_labels(labels: Any, *, name: str = "labels") -> Int[Tensor, " B"]:
    """Return labels as an int64 tensor; class names by their codes.

    Raises
    ------
    LabelError
        If they are neither one whole number nor one name per item.
    """
    if labels is None:
        raise LabelError(f"{name} is None: pass the class of each item.")
    if not isinstance(labels, Tensor):
        labels = plain(labels)
        if (names := names_of(labels)) is not None:
            check_names(name, names)
            return class_codes(names)
    check_not_tags(name, labels)
    check_missing(name, labels)
    check_not_mixed(name, labels)
    try:
        values = labels if isinstance(labels, Tensor) else as_array(name, labels)
        tensor = values if _is_plain(values) else as_tensor(name, values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(
            f"{name} cannot be read as whole numbers ({error}), and are not class names either: "
            "pass one whole number or one string per item, none missing."
        ) from error
    if not tensor.numel() and not isinstance(labels, Tensor):
        return torch.zeros(0, dtype=torch.int64)  # NumPy makes floats of nothing
    if tensor.is_floating_point() or str(values.dtype).endswith("bool"):
        raise LabelError(f"{name} has dtype {values.dtype}: pass whole numbers (torch.int64).")
    if tensor.ndim != 1:
        raise LabelError(f"{name} has shape {tuple(tensor.shape)}: pass one class per item, [B].")
    return tensor.long()


def _is_plain(labels: Any) -> TypeGuard[Tensor]:
    """Return whether the labels are whole numbers in plain memory, at a glance."""
    usual = type(labels) is Tensor and labels.dtype == torch.int64
    return usual and labels.layout == torch.strided and not (labels.is_meta or labels.is_nested)


def joined_labels(batch_labels: Sequence[Any]) -> Any:
    """Return the labels of all batches, or None if none had any."""
    if not batch_labels:
        return None
    if isinstance(batch_labels[0], Tensor):
        return torch.cat([labels.cpu() for labels in batch_labels])
    return [name for labels in batch_labels for name in labels]
