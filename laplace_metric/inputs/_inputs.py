"""``Inputs``: the data of one call, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.validation import DTYPES, as_array, as_tensor, check_dense
from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._arrays import dense, is_rows, plain
from laplace_metric.inputs._batches import labels_of, n_rows
from laplace_metric.inputs._labels import check_labels
from laplace_metric.inputs._loaders import as_batches
from laplace_metric.inputs._not_classes import check_noise
from laplace_metric.inputs._texts import gathered_texts, grouped_texts

BATCH = 256
"""Rows of one array, or texts of one list, that enter the model at once."""


def batches(name: str, inputs: Any) -> Iterator[tuple[Any, Any]]:
    """``(inputs, labels or None)`` from an array, a list of texts, a mapping or a loader.

    Raises
    ------
    InputError
        For anything else.
    """
    inputs = readable(name, inputs)
    if isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 1:
        yield _rows(name, inputs), None  # one item, or a number for each: the model says which
    elif _has_rows(inputs):
        starts = range(0, len(inputs), BATCH)
        yield from ((_rows(name, inputs[i : i + BATCH]), None) for i in starts)
    elif isinstance(inputs, Mapping):
        yield labels_of(inputs)
    else:
        yield from (labels_of(batch) for batch in _iterated(name, inputs))


def _iterated(name: str, inputs: Any) -> Iterator[Any]:
    try:
        entries = iter(inputs)
    except TypeError as error:
        raise InputError(
            f"{name} is a {type(inputs).__name__}: pass an array, a list of texts, a mapping of "
            "tensors, or a loader of batches."
        ) from error
    return grouped_texts(name, entries)


def readable(name: str, inputs: Any) -> Any:
    """Return inputs whose rows can be counted and taken: texts as a list, frames as arrays."""
    if isinstance(inputs, Tensor) and inputs.ndim:
        return check_dense(name, inputs)
    inputs = dense(name, gathered_texts(name, inputs))
    inputs = as_array(name, inputs) if is_rows(inputs) else inputs
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind == "O":
        inputs = inputs.tolist()
    if isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 0:
        raise InputError(f"{name} is a single number: pass an array of items.")
    return as_batches(inputs)


def _rows(name: str, array: Any) -> Any:
    """Some rows as a tensor of their type; few at a time, the array may be a memory map.

    Of float64, NumPy's and pandas' own choice, they stay an array: the model's weights say which
    type they get (``models.call_model``).
    """
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype == np.float64:
        return np.array(array)
    rows = as_tensor(name, array)
    same = getattr(torch, array.dtype.name, None)  # whole numbers have become int64
    return rows.to(same) if array.dtype.name in DTYPES else rows


def count_of_batches(inputs: Any) -> int | None:
    """Return how many batches there will be, where that is known."""
    inputs = readable("inputs", inputs)
    if _has_rows(inputs):
        return -(-len(inputs) // BATCH)
    return len(inputs) if isinstance(inputs, Sized) and not isinstance(inputs, Mapping) else None


def _has_rows(inputs: Any) -> bool:
    """Return whether inputs are an array or texts, rather than a loader of batches."""
    if isinstance(inputs, (list, tuple)):
        return all(isinstance(x, str) for x in inputs)
    return isinstance(inputs, (Tensor, np.ndarray))


class LabelledInputs:
    """Batches of inputs, each with its part of ``labels`` [N]; read once or often.

    Parameters
    ----------
    inputs : an array, a data frame, a list of rows or texts, a mapping, or a loader of batches
    labels : [N] whole numbers or names of classes

    Raises
    ------
    LabelError
        For labels that are neither; when read, for another number of labels than of inputs.
    InputError
        When read, for inputs that are none of these.

    Examples
    --------
    >>> [len(codes) for _, codes in LabelledInputs(np.ones((300, 2)), ["a", "b"] * 150)]
    [256, 44]
    """

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = readable("inputs", inputs), check_labels(labels)
        check_noise("labels", self.labels.cpu().numpy())

    def __len__(self) -> int:
        return count_of_batches(self.inputs) or 0

    @property
    def n_items(self) -> int:
        """Number of items in all batches."""
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        start, n = 0, len(self.labels)
        for batch, _ in batches("inputs", self.inputs):
            stop = start + n_rows(batch)
            if stop > n:
                break
            yield batch, self.labels[start:stop]
            start = stop
        else:
            stop = start
        if stop != n:
            at_least = "" if stop < n else "at least "
            raise LabelError(
                f"labels has {n} entries for {at_least}{stop} inputs: pass one for each."
            )


def labelled_loader(inputs: Any, labels: Any = None) -> Any:
    """A loader of ``(inputs, labels)`` batches; what is one already, as it is.

    Raises
    ------
    LabelError
        For arrays without labels, and as ``LabelledInputs``.

    Examples
    --------
    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.arange(4))
    >>> [labels.tolist() for _, labels in labelled_loader(data)]
    [[0, 1, 2, 3]]
    """
    if labels is not None:
        return LabelledInputs(inputs, labels)
    kind, inputs = type(inputs).__name__, gathered_texts("inputs", inputs)
    texts = isinstance(inputs, list) and any(isinstance(x, str) for x in inputs)
    if isinstance(plain(inputs), (Tensor, np.ndarray)) or is_rows(inputs) or texts:
        raise LabelError(f"inputs are a {kind} without labels: pass fit(inputs, labels).")
    if isinstance(inputs, Mapping):
        return [inputs]
    return as_batches(inputs)
