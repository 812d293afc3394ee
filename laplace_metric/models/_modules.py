"""The module to call: checked, unwrapped, and the device that it is on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from laplace_metric._utils.validation import refuse_reloaded
from laplace_metric.errors import InputError
from laplace_metric.inputs._no_data import is_faiss


def check_module(model: Any) -> nn.Module:
    """Return the model itself, if it is a module.

    Raises
    ------
    InputError
        If it is none.
    """
    if not isinstance(model, nn.Module):
        refuse_reloaded("model", model)
        told = f"model is a {type(model).__name__}: pass a torch.nn.Module"
        if isinstance(model, str):
            told = (
                f"model={model!r:.60} is a name: load the network and pass a torch.nn.Module, such "
                "as torchvision.models.resnet18(weights='DEFAULT')"
            )
        elif is_faiss(model):
            told += "; a FAISS index holds vectors and embeds nothing, Guard.wrap(index, labels)"
        raise InputError(f"{told}.")
    return model


def unwrapped(model: Any) -> nn.Module:
    """Return the module inside ``torch.compile``, ``DataParallel``, ``DistributedDataParallel``.

    It has the same weights, and its layers have the names that they had before: a posterior that
    was fitted on a compiled model loads on a plain one. Hooks on a wrapper would make
    ``torch.compile`` compile again, and run once on every device of a ``DataParallel``.

    Examples
    --------
    >>> layer = nn.Linear(3, 2)
    >>> unwrapped(nn.DataParallel(layer)) is layer
    True
    """
    module = check_module(model)
    if isinstance(module, (DataParallel, DistributedDataParallel)):
        return unwrapped(module.module)
    compiled = dict(module._modules).get("_orig_mod")  # the name that torch.compile gives, for good
    return module if compiled is None else unwrapped(compiled)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters; the CPU for a model without any.

    Raises
    ------
    InputError
        For no module, or one whose parameters hold no data.
    """
    parameter = next(check_module(model).parameters(), None)
    if parameter is not None and parameter.is_meta:
        raise InputError("model is on the meta device, without weights: load them first.")
    return torch.device("cpu") if parameter is None else parameter.device
