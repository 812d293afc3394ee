"""Find what is passed in place of data: a model, a FAISS index, labels first, tags as labels."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from numbers import Number
from os import PathLike
from typing import Any

import numpy as np
from torch import Tensor, nn

from laplace_metric.errors import InputError, LabelError

HOLDS = "__iter__", "__array__", "__getitem__", "__len__", "to_numpy", "__dlpack__"
"""Attributes, of which what holds data has one."""
CHANNELS = 1, 3, 4
"""Channels of an image."""
TAGS = (
    "one label an item. Of several tags each, laplace_metric.tags.TagGuard(vectors, tags, "
    "precision) gives those that are right"
)


def check_holds_data(name: str, values: Any) -> None:
    """Refuse an object that is not data, and say where it belongs.

    Parameters
    ----------
    name : str
        Name of the argument.
    values : any
        Value of the argument.

    Raises
    ------
    InputError
        For a model, a FAISS index, a path, None, a function, and a guard or an embedder.

    Examples
    --------
    >>> check_holds_data("items", nn.Linear(3, 2))
    Traceback (most recent call last):
    laplace_metric.errors.InputError: items is a Linear, a model: pass the inputs of the model, \
and the model itself as model=.
    """
    kind = type(values).__name__
    if isinstance(values, nn.Module):
        raise InputError(
            f"{name} is a {kind}, a model: pass the inputs of the model, and the model itself as "
            "model=."
        )
    if is_faiss(values):
        raise InputError(
            f"{name} is a {kind}, a FAISS index: Guard.wrap(index, labels) guards one. As {name} "
            "pass its vectors, index.reconstruct_n(0, index.ntotal)."
        )
    if isinstance(values, PathLike):
        raise InputError(
            f"{name} is a path: read what is there and pass that, such as the images of "
            "laplace_metric.datasets.load_folder(path)."
        )
    none = callable(values) or type(values).__module__.startswith("laplace_metric.")
    if values is None or (none and not any(hasattr(values, each) for each in HOLDS)):
        what = "None" if values is None else f"a {kind}"
        raise InputError(f"{name} is {what}: pass an array, a list of texts, or a loader.")


def check_is_no_mapping(name: str, values: Any) -> None:
    """Refuse a mapping where vectors are asked for.

    Raises
    ------
    InputError
        It names an entry to pass.
    """
    if isinstance(values, Mapping):
        keys = [*values][:3]
        one = f"{name}[{keys[0]!r}]" if keys else "its vectors"
        raise InputError(
            f"{name} is a {type(values).__name__} with the keys {keys}: pass the array of vectors "
            f"[N, D] that is in it, such as {one}."
        )


def check_not_one_image(name: str, values: Any) -> None:
    """Refuse a list of one square image, which may be a batch of as many rows.

    Raises
    ------
    InputError
        With both ways to write it.

    Examples
    --------
    >>> check_not_one_image("inputs", [np.zeros((28, 28))])
    Traceback (most recent call last):
    laplace_metric.errors.InputError: inputs is a list of one array of shape (28, 28), and a list \
is read as batches: this may be one image, or a batch of 28 items. Pass inputs[0][None] for one \
image, inputs[0] for a batch.
    """
    if not isinstance(values, (list, tuple)) or len(values) != 1:
        return
    if not isinstance(values[0], (Tensor, np.ndarray)):
        return
    shape = _shape(values[0])
    if len(shape) == 2 or (len(shape) == 3 and shape[0] in CHANNELS):
        if shape[-1] != shape[-2] or shape[-1] == 1:
            return
        raise InputError(
            f"{name} is a list of one array of shape {shape}, and a list is read as batches: this "
            f"may be one image, or a batch of {shape[0]} items. Pass {name}[0][None] for one "
            f"image, {name}[0] for a batch."
        )


def is_faiss(values: Any) -> bool:
    """Return whether an object is an index of FAISS, which need not be installed."""
    return hasattr(values, "ntotal") and hasattr(values, "search")


def check_not_swapped(name: str, data: Any, labels: Any) -> None:
    """Refuse labels in the place of data, next to data in the place of labels.

    Raises
    ------
    InputError
        If the first is a list of numbers or names, and the second has a row for each.

    Examples
    --------
    >>> check_not_swapped("items", [0, 1], np.ones((2, 3)))
    Traceback (most recent call last):
    laplace_metric.errors.InputError: items has the shape (2,) and labels (2, 3), labels first: \
pass the items first, then the labels.
    """
    shapes = _shape(data), _shape(labels)
    if len(shapes[0]) == 1 and len(shapes[1]) > 1 and shapes[0][0] == shapes[1][0]:
        raise InputError(
            f"{name} has the shape {shapes[0]} and labels {shapes[1]}, labels first: pass the "
            f"{name} first, then the labels."
        )


def check_pair_order(name: str, pair: Any) -> None:
    """Refuse a pair (labels, inputs) of whole numbers [N] and of numbers with a row for each.

    Raises
    ------
    LabelError
        It says how to write the pair.

    Examples
    --------
    >>> check_pair_order("batch 0", (np.arange(2), np.ones((2, 3))))
    Traceback (most recent call last):
    laplace_metric.errors.LabelError: batch 0 holds labels first, of the shape (2,), and then \
inputs, (2, 3): yield (inputs, labels).
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return
    if not all(isinstance(part, (Tensor, np.ndarray)) for part in pair):
        return
    first, second = (_shape(part) for part in pair)
    whole, other = ("int" in str(part.dtype) for part in pair)
    if len(first) == 1 and whole and second[:1] == first and len(second) > 1 + other:
        raise LabelError(
            f"{name} holds labels first, of the shape {first}, and then inputs, {second}: yield "
            "(inputs, labels)."
        )


def _shape(values: Any) -> tuple[int, ...]:
    """Return the shape of an array, or of a list whose entries are numbers or names."""
    if isinstance(values, Tensor) and values.is_nested:  # which has none
        return ()
    shape = getattr(values, "shape", None)
    if shape is not None:
        return tuple(shape)
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], (str, Number)):
        return (len(values),)
    return ()


def check_not_tags(name: str, labels: Any) -> None:
    """Refuse several labels for each item.

    Raises
    ------
    LabelError
        For a list of lists or sets, and for a matrix.

    Examples
    --------
    >>> check_not_tags("labels", [["red", "round"], ["blue"]])
    Traceback (most recent call last):
    laplace_metric.errors.LabelError: labels holds a list for an item, ['red', 'round'] the first: \
pass one label an item. Of several tags each, laplace_metric.tags.TagGuard(vectors, tags, \
precision) gives those that are right.
    """
    shape = _shape(labels)
    if len(shape) == 2:
        how = f"{TAGS}; of zeros and a single one, labels.argmax(1)"
        if shape[1] == 1:
            how = f"its one column, {name}[:, 0]"
        raise LabelError(f"{name} has shape {tuple(shape)}: pass {how}.")
    if isinstance(labels, (list, tuple)) or (
        isinstance(labels, np.ndarray) and labels.dtype == object
    ):
        first = labels[0] if len(labels) else None
        if isinstance(first, (list, tuple, AbstractSet)):
            shown = sorted(first, key=str) if isinstance(first, AbstractSet) else first
            raise LabelError(
                f"{name} holds a {type(first).__name__} for an item, {shown!r:.60} the first: "
                f"pass {TAGS}."
            )
