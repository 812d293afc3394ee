"""The model inside its wrappers, and evaluation mode that leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from laplace_metric.errors import InputError


def check_module(model: Any) -> nn.Module:
    """The model itself, if it is a module.

    Raises
    ------
    InputError
        If it is none.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: pass a torch.nn.Module.")
    return model


def unwrapped(model: Any) -> nn.Module:
    """The module inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``.

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
    compiled = module._modules.get("_orig_mod")  # the name that torch.compile gives, for good
    return module if compiled is None else unwrapped(compiled)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each sub-module has the mode that it had before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
