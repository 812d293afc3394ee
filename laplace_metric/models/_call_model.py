"""Call a model with one batch, on its device and in the type of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import as_tensor
from laplace_metric.errors import InputError
from laplace_metric.inputs._batches import ModelInput


def call_model(model: nn.Module, inputs: ModelInput) -> Any:
    """Return ``model(x)``; ``model(*x)`` of a tuple, ``model(**x)`` of a mapping.

    Parameters
    ----------
    model : nn.Module
        Any model. Arrays become tensors, of the floating type and on the device of its weights; a
        model without weights (``Precomputed``) takes them as they are.
    inputs : ModelInput
        One batch as ``inputs.read_batch`` returns it.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, Mapping):
        return model(**{name: _tensor_like(model, x) for name, x in inputs.items()})
    if isinstance(inputs, tuple) and not hasattr(model, "takes_rows"):
        return model(*inputs)
    return model(_tensor_like(model, inputs))


def _tensor_like(model: nn.Module, inputs: ModelInput) -> ModelInput:
    """Return an array as a tensor, for a model with weights."""
    if not isinstance(inputs, np.ndarray):
        return inputs
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return inputs
    values = as_tensor("inputs", inputs)
    return values.to(weight) if values.is_floating_point() else values.to(weight.device)


def to_device(inputs: ModelInput, device: torch.device) -> ModelInput:
    """Move every tensor of a (nested) input to ``device``; everything else passes through.

    Raises
    ------
    InputError
        For a tensor without data.
    """
    if isinstance(inputs, Tensor):
        if inputs.is_meta and device.type != "meta":
            raise InputError(f"inputs hold a meta tensor {list(inputs.shape)}: pass one with data.")
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {key: to_device(value, device) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        moved = [to_device(value, device) for value in inputs]
        return moved if isinstance(inputs, list) else tuple(moved)
    return inputs
