"""What the samplers of a DataLoader remember: their generators, and numbers that they change.

Most orders follow from a random state alone. ``MPerClassSampler`` of pytorch-metric-learning also
shuffles a list of its own in place, so that an epoch depends on those before it.
"""

from __future__ import annotations

from typing import Any

import torch

DEPTH = 8
"""Samplers inside samplers that are looked for."""


def samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, however they are nested, each once.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> [type(sampler).__name__ for sampler in samplers(DataLoader([1, 2], shuffle=True))]
    ['RandomSampler', 'BatchSampler']
    """
    found: list[Any] = []
    parts = [loader]
    for _ in range(DEPTH):
        inner = [getattr(p, name, None) for p in parts for name in ("sampler", "batch_sampler")]
        parts = [p for p in inner if p is not None and all(p is not other for other in found)]
        found += parts
    return found


def generators(loader: Any) -> list[torch.Generator]:
    """Of the loader and of its samplers, each once."""
    owned = [getattr(part, "generator", None) for part in (loader, *samplers(loader))]
    return list({id(g): g for g in owned if isinstance(g, torch.Generator)}.values())


def sampler_state(sampler: Any) -> dict[str, Any]:
    """Whole numbers and lists of them (as tensors) among the attributes."""
    found: dict[str, Any] = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if _whole(value):
            found[name] = int(value)
        elif isinstance(value, list) and value and all(_whole(v) for v in value):
            found[name] = torch.tensor([int(v) for v in value])
    return found


def restore_sampler(sampler: Any, state: dict[str, Any]) -> None:
    """Put back what ``sampler_state`` took."""
    for name, value in state.items():
        setattr(sampler, name, value.tolist() if torch.is_tensor(value) else value)


def _whole(value: Any) -> bool:
    """An int, also of numpy, that is no truth value."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))
