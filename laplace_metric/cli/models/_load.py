"""What ``--model`` names: a factory of the user, or a model that others have published."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.cli._nearest import did_you_mean
from laplace_metric.cli.models._published import PUBLISHED, LoadedModel, guarded, one_line
from laplace_metric.errors import InputError
from laplace_metric.models import Inputs, call_model, evaluation_mode, to_device

FORMS = "package.module:factory (a function without arguments, or an nn.Module), " + ", ".join(
    form for form, _ in PUBLISHED.values()
)


def load_model(name: str, device: str | None = None) -> LoadedModel:
    """The model that a name stands for, on ``device``.

    Raises
    ------
    InputError
        If there is no such model or device, or making it fails.
    MissingPackageError
        If its package is not installed.
    """
    prefix, _, rest = name.partition(":")
    if not prefix or not rest:
        raise InputError(f"--model {name!r}: give {FORMS}.")
    loaded = PUBLISHED[prefix][1](name, rest) if prefix in PUBLISHED else _from_factory(name, rest)
    try:
        return replace(loaded, model=loaded.model.to(device or "cpu"))
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"--device {device}: {line}") from error


def code_of(name: str) -> str:
    """What loading a model runs, in words.

    Examples
    --------
    >>> code_of("my_model:embedder")
    "it would import 'my_model' and call 'embedder' of it"
    """
    prefix, _, rest = name.partition(":")
    if prefix in PUBLISHED:
        return f"it would load {rest!r} with {prefix}"
    return f"it would import {prefix!r} and call {rest!r} of it"


def check_inputs(name: str, model: nn.Module, inputs: Inputs) -> None:
    """Check that a model takes these inputs.

    Raises
    ------
    InputError
        If it fails on them; the error that it raises is in the message.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with evaluation_mode(model):
            call_model(model, to_device(inputs, device))
    except Exception as error:
        raise InputError(
            f"--model {name} fails on {_shape(inputs)}: {one_line(error)}. For images, --size and "
            "--channels say how they are made."
        ) from error


def _from_factory(name: str, attribute: str) -> LoadedModel:
    module, _, _ = name.partition(":")
    with _current_folder_importable():
        value: Any = _imported(name, module)
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise InputError(f"--model {name}: {module} has no {attribute!r}.")
            value = getattr(value, part)
        if not isinstance(value, nn.Module) and callable(value):
            value = guarded(f"--model {name}: {attribute}()", value)
    model, transform = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"--model {name} gives a {type(model).__name__}: give an nn.Module, or a pair "
            "(nn.Module, transform)."
        )
    return LoadedModel(model, transform, reads="" if transform is None else None)


def _imported(name: str, module: str) -> Any:
    """A module of the user; a name that is near a prefix of ours may be a typing error."""
    try:
        return guarded(f"--model {name}: importing {module}", partial(import_module, module))
    except InputError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or cause.name != module:
            raise
        near = did_you_mean(module, PUBLISHED) or f" Give {FORMS}."
        raise InputError(f"{error}{near}") from cause


def _shape(inputs: Inputs) -> str:
    return f"inputs {list(inputs.shape)}" if isinstance(inputs, Tensor) else f"{inputs!r:.60}"


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
