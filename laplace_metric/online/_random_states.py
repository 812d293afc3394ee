"""Random states of a training: of the process, of its loader and of the samplers inside.

Most orders of a DataLoader follow from a random state alone. ``MPerClassSampler`` of
pytorch-metric-learning also shuffles a list of its own in place, so that an epoch depends on those
before it: the numbers that a sampler holds are a state too.
"""

from __future__ import annotations

import random
from operator import length_hint
from typing import Any

import numpy as np
import torch

from laplace_metric.errors import FileFormatError
from laplace_metric.online._state_tree import StateTree

MAX_DEPTH = 8
"""Samplers inside samplers that are looked for."""


def samplers(loader: Any) -> list[Any]:
    """Return the samplers of a loader, however they are nested, each once.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> [type(sampler).__name__ for sampler in samplers(DataLoader([1, 2], shuffle=True))]
    ['RandomSampler', 'BatchSampler']
    """
    nested: list[Any] = []
    parts = [loader]
    for _ in range(MAX_DEPTH):
        inner = [getattr(p, name, None) for p in parts for name in ("sampler", "batch_sampler")]
        parts = [p for p in inner if p is not None and all(p is not other for other in nested)]
        nested += parts
    return nested


def generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of the loader and of its samplers, each once."""
    attributes = [getattr(part, "generator", None) for part in (loader, *samplers(loader))]
    return list({id(g): g for g in attributes if isinstance(g, torch.Generator)}.values())


def sampler_state(sampler: Any) -> dict[str, Any]:
    """Return the integers and lists of integers (as tensors) among the attributes."""
    state: dict[str, Any] = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if _is_integer(value):
            state[name] = int(value)
        elif isinstance(value, list) and value and all(_is_integer(v) for v in value):
            state[name] = torch.tensor([int(v) for v in value])
    return state


def loader_settings(loader: Any) -> dict[str, Any]:
    """Return, as JSON values, sizes of a loader and the kinds of its samplers.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> loader_settings(DataLoader([1, 2], batch_size=2))
    {'batch size': 2, 'data set length': 2, 'samplers': ['SequentialSampler', 'BatchSampler']}
    """
    size, data = getattr(loader, "batch_size", None), getattr(loader, "dataset", None)
    return {
        "batch size": None if size is None or not _is_integer(size) else int(size),
        "data set length": length_hint(data) or None,
        "samplers": [type(sampler).__name__ for sampler in samplers(loader)],
    }


def numbers_of(loader: Any) -> list[dict[str, int]]:
    """Return the integers among the attributes of each sampler."""
    states = (sampler_state(sampler) for sampler in samplers(loader))
    return [{k: v for k, v in state.items() if isinstance(v, int)} for state in states]


def check_samplers(states: StateTree, first: list[dict[str, int]], loader: Any) -> None:
    """Refuse a loader whose samplers have other settings than those of a checkpoint.

    Parameters
    ----------
    states : dict
        Random states of the checkpoint, as ``random_states`` took them.
    first : list of dict
        Integers of the samplers when the run began, as ``numbers_of`` gives them: a number that has
        moved since is a counter, and so is one of an epoch.
    loader : loader
        Loader of the run that goes on.

    Raises
    ------
    FileFormatError
        Then; nothing was changed.
    """
    now = numbers_of(loader)
    for sampler, saved, begun, present in zip(
        samplers(loader), states["samplers"], first, now, strict=True
    ):
        for name, value in begun.items():
            is_setting = saved[name] == value and "epoch" not in name
            if is_setting and present.get(name) != value:
                raise FileFormatError(
                    f"the loader's {type(sampler).__name__} has {name}={present.get(name)}, and "
                    f"{value} in the run of the checkpoint: pass the loader that it was written "
                    "with, or another folder."
                )


def _is_integer(value: Any) -> bool:
    """Return whether it is an int, also of numpy, and no bool."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))


def random_states(weights: torch.Generator, loader: Any, device: torch.device) -> StateTree:
    """Return every random state that a training draws from, ``weights`` among them."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "generators": [g.get_state() for g in (weights, *generators(loader))],
        "samplers": [sampler_state(sampler) for sampler in samplers(loader)],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_states(
    states: StateTree, weights: torch.Generator, loader: Any, device: torch.device
) -> None:
    """Put back what ``random_states`` took."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    for generator, state in zip((weights, *generators(loader)), states["generators"], strict=True):
        generator.set_state(state)
    for sampler, state in zip(samplers(loader), states["samplers"], strict=True):
        for name, value in state.items():
            setattr(sampler, name, value.tolist() if torch.is_tensor(value) else value)
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])
