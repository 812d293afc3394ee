"""Describe a value by its kind and shapes, for errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def shown(value: Any) -> str:
    """Return the kind and the shapes of a value.

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
    else:  # an output object, such as a data class
        fields = getattr(value, "__dict__", {}).items()
        parts = [f"{name} {_short(part)}" for name, part in fields if isinstance(part, Tensor)]
    some = parts[:MOST_PARTS] + (["..."] if len(parts) > MOST_PARTS else [])
    return f"a {type(value).__name__}" + (f" ({', '.join(some)})" if some else "")


def _short(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return str(list(value.shape))
    return str(None) if value is None else f"a {type(value).__name__}"


MOST_PARTS = 6
"""Parts of an object that are shown."""
