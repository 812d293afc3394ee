"""Why a model could not be called with its inputs, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import Parameter, signature
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader

from laplace_metric.errors import DtypeError, InputError
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._shown import shown

OF_TYPES = re.compile(r"dtype|scalar type|[Ii]nput type|not implemented for|float tensor")
"""What torch says of a layer and inputs of another type."""
FEW = 3
"""Parts of a batch that a model may take as arguments; more of one kind are items."""
OF_SIZES = re.compile(
    r"shapes cannot be multiplied|size mismatch|need to be at least 1D|got input of size|"
    r"to have \d+ channels|expected \dD .*input|normalized_shape=|running_mean should contain|"
    r"must be equal to input_size"
)
"""What torch says of a layer and inputs of another size."""


def explain(model: nn.Module, inputs: ModelInput, error: Exception) -> None:
    """Raise an error that says what to do, where that is known.

    Parameters
    ----------
    model : nn.Module
        Model that was called.
    inputs : ModelInput
        Inputs that it was called with.
    error : Exception
        Exception that the call raised.

    Raises
    ------
    DtypeError
        If a floating input has a type that no weight has, or inputs are whole numbers (images as
        they are read) where the model computes with floating ones.
    InputError
        If the model takes no strings, not these keywords or not so many arguments, inputs are no
        numbers, or torch says that sizes of layer and inputs do not fit.
    """
    if isinstance(error, (TypeError, AttributeError)):
        _explain_call(model, inputs, error)
    if isinstance(error, (RuntimeError, TypeError)) and OF_TYPES.search(str(error)):
        _explain_whole_numbers(model, inputs, error)
    if isinstance(error, RuntimeError):
        _explain_types(model, inputs, error)
    if isinstance(error, (RuntimeError, ValueError)) and not isinstance(error, InputError):
        _explain_sizes(model, inputs, error)


def _explain_call(model: nn.Module, inputs: ModelInput, error: Exception) -> None:
    """Raise ``InputError`` for inputs that are not those of the model's ``forward``."""
    kind, why = type(model).__name__, f"({type(error).__name__}: {_first_line(error)})"
    if isinstance(inputs, Mapping):
        names = [str(name) for name in inputs]
        if unknown := [name for name in names if not _takes(model, (), {name: None})]:
            raise InputError(
                f"{kind} takes no {', '.join(map(repr, sorted(unknown)))} {why}: it is called as "
                f"model(**inputs), with each entry of a batch but its labels, and takes "
                f"{_arguments(model)}. Leave the others out of the batches, or yield pairs "
                f"(batch[{names[0]!r}], labels); a SentenceTransformer takes strings through "
                "models.Sentences(model)."
            ) from error
        how = f"the keywords {sorted(names)} as model(**inputs)"
    elif isinstance(inputs, list):
        how = "a list of strings" if inputs else "an empty list, which has no width (pass [0, D])"
    elif isinstance(inputs, tuple):
        _explain_parts(model, inputs, error)
        return
    elif _are_batches(inputs):
        raise InputError(
            f"{kind} could not be called with {_article(inputs)}: a call takes one batch, a tensor "
            "or an array [B, ...]. Call it for each batch of inputs; of a loader "
            "embedder.uncertainties(loader) returns the uncertainty of all items."
        ) from error
    elif not isinstance(inputs, (Tensor, np.ndarray)):
        raise InputError(
            f"{kind} could not be called with {_article(inputs)} {why}: pass a tensor or an array "
            "[B, ...], a list of texts, or a mapping of tensors."
        ) from error
    else:
        return
    raise InputError(
        f"{kind} could not be called with {how} {why}. "
        "A SentenceTransformer takes strings through models.Sentences(model); a model of "
        "transformers takes what its tokenizer gives with return_tensors='pt'."
    ) from error


def _explain_parts(model: nn.Module, parts: Any, error: Exception) -> None:
    """Raise ``InputError`` for a tuple or list that is not the model's several arguments."""
    kind, n = type(model).__name__, len(parts)
    what = f"{kind} could not be called with {n} inputs, model(*inputs) with {shown(parts)}"
    if not all(isinstance(part, (Tensor, np.ndarray)) for part in parts):
        others = {type(part).__name__ for part in parts if not isinstance(part, Tensor)}
        raise InputError(
            f"{what}: make one tensor [B, ...] of these ({', '.join(sorted(others))}), as images "
            "by torchvision.transforms and torch.stack, texts by a tokenizer."
        ) from error
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1 and len({len(shape) for shape in shapes}) == 1 and n > FEW:
        raise InputError(
            f"{what}: items of unequal size make no batch. Bring them to one size, as images by "
            "torchvision.transforms.Resize, and pass torch.stack(items); or a loader that does so."
        ) from error
    if not _takes(model, tuple(parts), {}):
        raise InputError(
            f"{what}: it takes {_arguments(model)}. A list of items is one tensor, "
            "torch.stack(items). Of a loader that yields (inputs, labels, index) pass the first "
            "two, ((x, y) for x, y, *_ in loader)."
        ) from error
    if "ndarray" in str(error) and any(isinstance(part, np.ndarray) for part in parts):
        raise InputError(
            f"{what}: a list or a tuple holds the arguments of a model, as tensors. Of one item "
            "pass x[None], and of several torch.stack(items)."
        ) from error


def _explain_whole_numbers(model: nn.Module, inputs: ModelInput, error: Exception) -> None:
    """Raise ``DtypeError`` for whole numbers where the weights are floating."""
    kinds = {str(x.dtype).removeprefix("torch.") for x in _tensors(inputs) if not _floating(x)}
    weights = {str(p.dtype) for p in model.parameters() if p.is_floating_point()}
    mixed = any(_floating(x) for x in _tensors(inputs)) and "uint8" not in kinds
    if not kinds or not weights or mixed:
        return
    how = "cast them, e.g. x.float()"
    if "uint8" in kinds:
        how = (
            "images as they are read? Cast and scale them as in training, e.g. x.float() / 255, "
            "with its mean and standard deviation"
        )
    raise DtypeError(
        f"the inputs are {', '.join(sorted(kinds))} and the model computes in "
        f"{', '.join(sorted(weights))}: {how} ({error})."
    ) from error


def _explain_types(model: nn.Module, inputs: ModelInput, error: Exception) -> None:
    """Raise ``DtypeError`` for floating inputs of a type that no weight has."""
    weights = {p.dtype for p in model.parameters()}
    floating = {x.dtype for x in _tensors(inputs) if isinstance(x, Tensor) and _floating(x)}
    if weights and not floating <= weights:
        named = [", ".join(sorted(map(str, kinds))) for kinds in (floating, weights)]
        raise DtypeError(
            f"the forward pass failed: inputs are {named[0]}, the model's weights {named[1]}. Cast "
            "one of them, e.g. model.float() or inputs.to(torch.float32)."
        ) from error


def _explain_sizes(model: nn.Module, inputs: ModelInput, error: Exception) -> None:
    """Raise ``InputError`` if torch says that sizes of layer and inputs do not fit."""
    if not OF_SIZES.search(str(error)):
        return
    sizes = ", ".join(str(list(x.shape)) for x in _tensors(inputs))
    line = any(x.ndim == 1 for x in _tensors(inputs))
    one = " One row [D] is one item; N items of one number each are x[:, None]." if line else ""
    raise InputError(
        f"{type(model).__name__} cannot take inputs {sizes or shown(inputs)} ({error}): pass "
        f"inputs of the size that its first layer has, in the shape [B, ...].{one}"
    ) from error


def _takes(model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Return whether ``forward`` has these arguments."""
    try:
        signature(model.forward).bind_partial(*args, **keywords)
    except (TypeError, ValueError):
        return False
    return True


def _arguments(model: nn.Module) -> str:
    """List the arguments of ``forward``."""
    try:
        known = signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return "others"
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return f"({', '.join(p.name for p in known if p.kind not in kinds)})"


def _first_line(error: Exception) -> str:
    """Return the message of an error without the signatures that torch lists below it."""
    return str(error).partition("\n")[0].removesuffix(", but expected one of:")


def _are_batches(inputs: Any) -> bool:
    """Return whether inputs of a call are a loader or an iterator of batches."""
    return isinstance(inputs, (DataLoader, Iterator))


def _article(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _floating(x: Tensor | np.ndarray[Any, Any]) -> bool:
    return x.is_floating_point() if isinstance(x, Tensor) else x.dtype.kind == "f"


def _tensors(inputs: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    if isinstance(inputs, Tensor) or (
        isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf"
    ):
        yield inputs
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from _tensors(value)
    elif isinstance(inputs, tuple):
        for value in inputs:
            yield from _tensors(value)
