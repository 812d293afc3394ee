"""What a model returned, in words, and how to make one tensor [B, Z] of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from laplace_metric.errors import HeadError


def check_returned(output: Any) -> Tensor:
    """The model's output [B, Z] itself.

    Raises
    ------
    HeadError
        If it is something else; the message says what, and which adapter reads it.
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        return output
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
        return f"a tensor {list(value.shape)}"
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
