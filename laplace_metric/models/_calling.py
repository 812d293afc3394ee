"""Call a model with one batch, on its device and in the type of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import as_tensor
from laplace_metric.errors import InputError
from laplace_metric.inputs._arrays import dense, is_rows, plain
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._texts import gathered_texts


def call_model(model: nn.Module, inputs: ModelInput) -> Any:
    """``model(x)``; ``model(*x)`` for a tuple or list, unless of strings; ``model(**x)``.

    Arrays, data frames and lists of numbers become tensors, of the floating type and on the device
    of the model's weights; a model without weights (``Precomputed``) takes them as they are.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    inputs = _tensor_like(model, dense("inputs", gathered_texts("inputs", inputs)))
    if isinstance(inputs, Mapping):
        return model(**{name: _tensor_like(model, plain(x)) for name, x in inputs.items()})
    several = isinstance(inputs, (tuple, list)) and not is_rows(inputs)
    if not several or all(isinstance(x, str) for x in inputs) or hasattr(model, "takes_rows"):
        return model(inputs)
    return model(*inputs)


def _tensor_like(model: nn.Module, inputs: ModelInput) -> ModelInput:
    """An array or rows of numbers as a tensor, for a model with weights."""
    if not isinstance(inputs, np.ndarray) and not is_rows(inputs):
        return inputs
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return inputs
    numbers = as_tensor("inputs", inputs)
    return numbers.to(weight) if numbers.is_floating_point() else numbers.to(weight.device)


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
    if isinstance(inputs, (tuple, list)) and not is_rows(inputs):
        moved = [to_device(value, device) for value in inputs]
        return moved if isinstance(inputs, list) else tuple(moved)
    return inputs
