"""A nested state, such as an optimizer's, as JSON and named tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError

StateTree = dict[str, Any]
"""Nested dictionaries, lists, tuples, tensors and plain values."""
PLAIN = (str, int, float, bool, type(None))


def flatten(tree: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Return a JSON value and the tensors that it names ``prefix0``, ``prefix1``, ...

    Dictionaries (whose keys may be numbers), lists, tuples, tensors and plain values come back
    from ``unflatten`` as they were; floats bit by bit.

    Raises
    ------
    InputError
        If a value is of another kind.

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
    """Rebuild the tree that ``flatten`` took apart.

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
    """Return shape and dtype of each tensor of a state dict.

    Examples
    --------
    >>> shapes({"weight": torch.ones(2, 3)})
    {'weight': [[2, 3], 'torch.float32']}
    """
    return {k: [list(v.shape), str(v.dtype)] for k, v in tree.items() if torch.is_tensor(v)}
