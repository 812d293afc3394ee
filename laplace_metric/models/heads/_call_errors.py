"""Why a model could not be called with its inputs, in words.

What a model returned, in words, and how to make one tensor [B, Z] of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from laplace_metric._utils.validation import check_floating
from laplace_metric.errors import DtypeError, HeadError, InputError
from laplace_metric.models._calling import Inputs


def explain(model: nn.Module, inputs: Inputs, error: Exception) -> None:
    """Raise an error that says what to do, where that is known.

    Raises
    ------
    DtypeError
        If a floating input has a dtype that no weight has.
    InputError
        If the model takes no strings, or not these keywords.
    """
    if isinstance(error, RuntimeError):
        _explain_dtypes(model, inputs, error)
    elif isinstance(error, (TypeError, AttributeError)):
        _explain_arguments(model, inputs, error)


def _explain_arguments(model: nn.Module, inputs: Inputs, error: Exception) -> None:
    if isinstance(inputs, Mapping):
        how = f"the keywords {sorted(map(str, inputs))} as model(**inputs)"
    elif isinstance(inputs, (tuple, list)) and all(isinstance(x, str) for x in inputs):
        how = f"a {type(inputs).__name__} of strings"
    else:
        return
    raise InputError(
        f"{type(model).__name__} could not be called with {how} ({type(error).__name__}: {error}). "
        "A SentenceTransformer takes strings through adapters.Sentences(model); a model of "
        "transformers takes what its tokenizer gives with return_tensors='pt'."
    ) from error


def _explain_dtypes(model: nn.Module, inputs: Inputs, error: RuntimeError) -> None:
    weights = {p.dtype for p in model.parameters()}
    input_dtypes = {x.dtype for x in _tensors(inputs) if x.is_floating_point()}
    if weights and not input_dtypes <= weights:
        shown = [", ".join(sorted(map(str, kinds))) for kinds in (input_dtypes, weights)]
        raise DtypeError(
            f"the forward pass failed: inputs are {shown[0]}, the model's weights {shown[1]}. Cast "
            "one of them, e.g. model.float() or inputs.to(torch.float32)."
        ) from error


def _tensors(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        yield from _tensors(list(inputs.values()))
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from _tensors(value)


def check_returned(output: Any) -> Tensor:
    """The model's output [B, Z] itself.

    Raises
    ------
    HeadError
        If it is something else; the message says what, and which adapter reads it.
    InputError
        If the tensor holds no floating numbers in plain memory.
    """
    if isinstance(output, Tensor) and not output.is_nested and output.ndim == 2:
        return check_floating("what the model returned", output)
    raise HeadError(f"the model returned {shown(output)}, not a tensor [B, Z]: {_advice(output)}")


def shown(value: Any) -> str:
    """Kind and shapes.

    Examples
    --------
    >>> import torch
    >>> shown({"tokens": torch.ones(2, 3, 4), "loss": None})
    'a dict (tokens [2, 3, 4], loss None)'
    """
    if isinstance(value, Tensor):
        return "a nested tensor" if value.is_nested else f"a tensor {list(value.shape)}"
    if isinstance(value, Mapping):
        parts = [f"{name} {_short(part)}" for name, part in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [_short(part) for part in value]
    else:
        parts = []
    return f"a {type(value).__name__}" + (f" ({', '.join(parts)})" if parts else "")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return str(None) if value is None else f"a {type(value).__name__}"


def _advice(output: Any) -> str:
    if isinstance(output, Mapping) and "sentence_embedding" in output:
        return "pass adapters.Sentences(model), which takes strings."
    if isinstance(output, Tensor) and output.ndim == 3:
        return "adapters.Pooled(model, 'mean') takes the mean over the tokens [B, T, Z]."
    if isinstance(output, (Mapping, tuple)):
        return (
            "adapters.Pooled(model, pooling, field) reads one field, such as pooling='mean' of "
            "vectors [B, T, Z] or pooling=None of one that is [B, Z]; adapters.Call(model, method) "
            "calls a method, such as 'encode_image'."
        )
    return "wrap it in a module that returns the embedding only."
