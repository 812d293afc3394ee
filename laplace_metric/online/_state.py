"""States as values that can be written down: nested states, samplers, random generators.

A nested state, such as an optimiser's, becomes JSON and named tensors; there is no pickle.

Most orders of a DataLoader follow from a random state alone. ``MPerClassSampler`` of
pytorch-metric-learning also shuffles a list of its own in place, so that an epoch depends on those
before it: the numbers that a sampler holds are a state too.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError

StateTree = dict[str, Any]
"""Nested dictionaries, lists, tuples, tensors and plain values."""

PLAIN = (str, int, float, bool, type(None))


def flatten(tree: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """A JSON value and the tensors that it names ``prefix0``, ``prefix1``, ...

    Dictionaries (whose keys may be numbers), lists, tuples, tensors and plain values come back
    from ``unflatten`` as they were; floats bit by bit.

    Raises
    ------
    InputError
        For a value of another kind.

    Examples
    --------
    >>> content, tensors = flatten({0: {"step": torch.tensor(3.0), "betas": (0.9, 0.99)}})
    >>> unflatten(content, tensors)
    {0: {'step': tensor(3.), 'betas': (0.9, 0.99)}}
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(tree, prefix, tensors), tensors


def _flatten(tree: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"{prefix}{len(tensors)}"
        tensors[name] = tree.detach().cpu().clone()  # a copy each: safetensors takes no aliases
        return {"tensor": name}
    if isinstance(tree, dict):
        pairs = [[_flatten(part, prefix, tensors) for part in pair] for pair in tree.items()]
        return {"dict": pairs}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_flatten(part, prefix, tensors) for part in tree]}
    if isinstance(tree, PLAIN):
        return tree
    raise InputError(
        f"a {type(tree).__name__} cannot be written to a checkpoint: the states of model, loss, "
        "optimizer and scheduler must be made of tensors, numbers, strings, dicts and lists."
    )


def unflatten(content: Any, tensors: dict[str, Tensor]) -> Any:
    """What ``flatten`` took apart.

    Raises
    ------
    FileFormatError
        If the JSON is not of ``flatten``, or names a tensor that is not there.
    """
    if isinstance(content, PLAIN):
        return content
    try:
        ((kind, parts),) = content.items()
        if kind == "tensor":
            return tensors[parts]
        if kind == "dict":
            return {unflatten(k, tensors): unflatten(v, tensors) for k, v in parts}
        return {"list": list, "tuple": tuple}[kind](unflatten(part, tensors) for part in parts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"a nested value is damaged: {error!r}.") from error


def shapes(tree: dict[str, Any]) -> dict[str, Any]:
    """Shape and dtype of each tensor of a state dict.

    Examples
    --------
    >>> shapes({"weight": torch.ones(2, 3)})
    {'weight': [[2, 3], 'torch.float32']}
    """
    return {k: [list(v.shape), str(v.dtype)] for k, v in tree.items() if torch.is_tensor(v)}


MAX_DEPTH = 8
"""Samplers inside samplers that are looked for."""


def samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, however they are nested, each once.

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
    """The generators of the loader and of its samplers, each once."""
    attributes = [getattr(part, "generator", None) for part in (loader, *samplers(loader))]
    return list({id(g): g for g in attributes if isinstance(g, torch.Generator)}.values())


def sampler_state(sampler: Any) -> dict[str, Any]:
    """The integers and lists of integers (as tensors) among the attributes."""
    state: dict[str, Any] = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if _is_integer(value):
            state[name] = int(value)
        elif isinstance(value, list) and value and all(_is_integer(v) for v in value):
            state[name] = torch.tensor([int(v) for v in value])
    return state


def restore_sampler(sampler: Any, state: dict[str, Any]) -> None:
    """Put back what ``sampler_state`` took."""
    for name, value in state.items():
        setattr(sampler, name, value.tolist() if torch.is_tensor(value) else value)


def _is_integer(value: Any) -> bool:
    """Whether it is an int, also of numpy, and no bool."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))


def random_states(weights: torch.Generator, loader: Any, device: torch.device) -> StateTree:
    """Every random state that a training draws from, ``weights`` among them."""
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
        restore_sampler(sampler, state)
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])
