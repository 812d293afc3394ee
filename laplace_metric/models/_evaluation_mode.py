"""Switch a model to evaluation mode for a while, whatever other threads do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from laplace_metric.errors import InputError

_MODES = threading.RLock()
_SWITCHED: dict[int, tuple[nn.Module, int, bool]] = {}
"""Modules in eval mode for a while, by id: (module, calls that need it so, mode before)."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode without gradients; afterwards each sub-module has its mode of before.

    Any number of threads at once: the first call switches a module, the last one switches it back.
    A model that is in eval mode is not touched.
    """
    held: list[nn.Module] = []
    try:
        with _MODES:
            modules = list(model.modules())
            if any(module.training or id(module) in _SWITCHED for module in modules):
                for module in modules:
                    _, calls, training = _SWITCHED.get(id(module), (module, 0, module.training))
                    _SWITCHED[id(module)] = (module, calls + 1, training)
                    held.append(module)
                if any(module.training for module in modules):
                    _to_eval(model)
        with torch.no_grad():
            yield
    finally:
        with _MODES:
            for module in held:
                _, calls, training = _SWITCHED.pop(id(module))
                if calls > 1:
                    _SWITCHED[id(module)] = (module, calls - 1, training)
                else:
                    module.training = training


def _to_eval(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError as error:  # of torch.export
        raise InputError(
            f"{type(model).__name__} is a graph that cannot be switched to eval mode ({error}): "
            "pass the model that it was made from."
        ) from error
