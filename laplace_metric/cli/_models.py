"""Models that a command names: imported from code of the user."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.cli._source import ReadOptions
from laplace_metric.errors import InputError
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.models._call_model import call_model, to_device
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.models._modules import device_of

FORM = (
    "package.module:name, an nn.Module, a pair (nn.Module, transform), or a function without "
    "arguments that gives one of them"
)
PUBLISHED = (
    " docs/models.md has these lines for timm, torchvision, open_clip, transformers and "
    "sentence-transformers."
)


@dataclass(frozen=True)
class LoadedModel:
    """A model, and its transform of images (PIL image -> tensor) if it has one."""

    model: nn.Module
    transform: Callable[[Any], Any] | None = None

    def reading(self, options: ReadOptions) -> ReadOptions:
        """Return the options by which inputs of this model are read.

        Raises
        ------
        InputError
            For a size next to a transform.
        """
        if self.transform is not None and options.size is not None:
            raise InputError("--size: this model comes with a transform, which sets the size.")
        return replace(options, transform=self.transform)


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """Call ``call``; any exception of other people's code becomes one line.

    Raises
    ------
    InputError
        With what it raised, and where.
    """
    try:
        return call()
    except Exception as error:
        raise InputError(f"{what} fails: {error_line(error)}.") from error


def error_line(error: Exception) -> str:
    """Return an error in one line, with the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    location = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {lines[0]}{location}".rstrip(".")


def load_model(name: str, device: str | None = None) -> LoadedModel:
    """Import the model that a name stands for, on ``device``.

    Raises
    ------
    InputError
        If there is no such model or device, or making it fails.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError(f"--model {name!r}: give {FORM}.")
    _check_device(device or "cpu")
    loaded = _from_factory(name, module, attribute)
    try:
        return replace(loaded, model=loaded.model.to(device or "cpu"))
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise InputError(
            f"--device {device}: {line.rstrip('.')}. Leave --device out for the CPU."
        ) from error


def _check_device(name: str) -> None:
    """Refuse a name that is no device, before a model is made for it.

    Raises
    ------
    InputError
        It names the usual devices.
    """
    try:
        torch.device(name)
    except RuntimeError as error:
        raise InputError(
            f"--device {name}: PyTorch has no such device. Give cuda (NVIDIA), mps (Apple) or cpu."
        ) from error


def code_of(name: str) -> str:
    """Describe the code that loading a model runs.

    Examples
    --------
    >>> code_of("my_model:embedder")
    "it would import 'my_model' and call 'embedder' of it"
    """
    module, _, attribute = name.partition(":")
    return f"it would import {module!r} and call {attribute!r} of it"


def check_inputs(name: str, model: nn.Module, inputs: ModelInput) -> None:
    """Check that a model takes these inputs.

    Raises
    ------
    InputError
        If it fails on them; the error that it raises is in the message.
    """
    shown = f"inputs {list(inputs.shape)}" if isinstance(inputs, Tensor) else f"{inputs!r:.60}"
    try:
        with evaluation_mode(model):
            call_model(model, to_device(inputs, device_of(model)))
    except Exception as error:
        raise InputError(
            f"--model {name} fails on {shown}: {error_line(error)}. For images, --size and "
            "--channels say how they are made."
        ) from error


def _from_factory(name: str, module: str, attribute: str) -> LoadedModel:
    sys.path.insert(0, "")  # the current folder
    try:
        try:
            value = guarded(f"--model {name}: importing {module}", partial(import_module, module))
        except InputError as error:
            cause = error.__cause__
            if isinstance(cause, ModuleNotFoundError) and cause.name == module:
                raise InputError(f"{error} Give {FORM}.{PUBLISHED}") from cause
            raise
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise InputError(f"--model {name}: {module} has no {attribute!r}. Give {FORM}.")
            value = getattr(value, part)
        if not isinstance(value, nn.Module) and callable(value):
            value = guarded(f"--model {name}: {attribute}()", value)
    finally:
        sys.path.remove("")
    model, transform = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"--model {name} gives a {type(model).__name__}: give an nn.Module, or a pair "
            "(nn.Module, transform)."
        )
    return LoadedModel(model, transform)
