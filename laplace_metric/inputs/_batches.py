"""Read one batch: its inputs, its labels, and how many items it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._arrays import read_numbers
from laplace_metric.inputs._class_names import check_not_mixed, names_of
from laplace_metric.inputs._labels import check_labels
from laplace_metric.inputs._missing import check_missing, have_gaps
from laplace_metric.inputs._no_data import check_pair_order
from laplace_metric.inputs._shown import shown
from laplace_metric.inputs._texts import gathered_texts

ModelInput = Any
"""One batch as it was read: a tensor, an array of numbers or a list of texts (``model(x)``), a
tuple (``model(*x)``) or a mapping of names to tensors and arrays (``model(**x)``)."""
LABELS = ("labels", "label")
"""Entries of a batch that is a mapping by which its labels go, as in Hugging Face's data sets."""


def read_batch(name: str, inputs: Any) -> ModelInput:
    """Return one batch as a model is called with it; what was read already is returned as it is.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    inputs : any
        A tensor, an array, a data frame, rows of numbers, texts in anything that holds them, a
        tuple or list of several arguments, or a mapping, whose labels are left out.

    Raises
    ------
    InputError
        For a sparse matrix, one text alone, and texts of which some are missing.
    LabelError
        If a mapping has both "labels" and "label".

    Examples
    --------
    >>> read_batch("inputs", [[0.5, 1.0]]).shape, read_batch("inputs", ("a text", "another"))
    ((1, 2), ['a text', 'another'])
    """
    if isinstance(inputs, Tensor):
        return inputs
    inputs = read_numbers(name, gathered_texts(name, inputs))
    if isinstance(inputs, Mapping):
        inputs, _ = labels_of(inputs)
        return {key: read_numbers(name, value) for key, value in inputs.items()}
    several = isinstance(inputs, list) and not all(isinstance(x, str) for x in inputs)
    return tuple(inputs) if several else inputs


def is_one_item(inputs: ModelInput) -> bool:
    """Return whether a batch may be one row of numbers [D].

    Examples
    --------
    >>> is_one_item(np.ones(3)), is_one_item(np.ones((1, 3))), is_one_item(["a text"])
    (True, False, False)
    """
    return isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 1


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the two parts of a pair, or a mapping without its labels and these, or None for them.

    Raises
    ------
    LabelError
        If a mapping has both "labels" and "label".

    Examples
    --------
    >>> split_batch({"input_ids": [[1, 2]], "labels": [3]}), split_batch("a text")
    (({'input_ids': [[1, 2]]}, [3]), ('a text', None))
    """
    if isinstance(batch, Mapping):
        found = [name for name in LABELS if name in batch]
        if len(found) > 1:
            raise LabelError('a batch has both "labels" and "label": leave one of them out.')
        inputs = {name: value for name, value in batch.items() if name not in found}
        return (inputs, batch[found[0]]) if found else (batch, None)
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def labels_of(batch: Any) -> tuple[Any, Any]:
    """Return inputs and labels of a batch that may have none: numbers or names, or None.

    A pair counts as ``(inputs, labels)`` if its second entry is one whole number per item, a list
    of names, or None; of a mapping the labels are its entry "labels" or "label".

    Raises
    ------
    LabelError
        For labels of which some are missing, or that are mixed of strings and numbers.

    Examples
    --------
    >>> labels_of(("a text", "another")), labels_of((["a text"], ["its class"]))
    ((('a text', 'another'), None), (['a text'], ['its class']))
    """
    inputs, labels = split_batch(batch)
    if isinstance(batch, Mapping):
        batch = inputs  # what else goes by that name, such as labels of tokens, is not an input
    if labels is None or (names := names_of(labels)) is not None:
        return inputs, None if labels is None else names
    if isinstance(labels, (tuple, list)) and not labels:
        return inputs, labels
    if have_gaps(labels):
        check_missing("labels", labels)
    check_not_mixed("labels", labels)
    try:
        return inputs, check_labels(labels)
    except LabelError:
        return batch, None


def labelled_parts(batch: Any, index: int) -> tuple[Any, Any]:
    """Return inputs and labels of batch ``index``, which must have both.

    Raises
    ------
    LabelError
        For a batch without labels; it says how to write one with them.
    """
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    check_pair_order(f"loader batch {index}", batch)
    inputs, labels = batch if pair else split_batch(batch)
    if pair or labels is not None:
        return inputs, labels
    raise LabelError(
        f"loader batch {index} is {shown(batch)}, so its labels are missing: "
        "yield (inputs, labels), where inputs is a tensor, a tuple or a dict; or a dict with an "
        f'entry "labels" or "label".{_how_to_split(batch)}'
    )


def _how_to_split(batch: Any) -> str:
    """Return what to write for a batch of another form."""
    if isinstance(batch, Mapping):
        rest = [name for name in batch if str(name) not in ("input_ids", "attention_mask")]
        last = rest[-1] if rest else "y"
        return f" If its labels are {last!r}: ({{'labels': b.pop({last!r}), **b}} for b in loader)."
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        n = len(batch)
        return (
            f" Of these {n} the first two, if they are inputs and labels: "
            "((x, y) for x, y, *_ in loader); the others as a tuple of inputs, if the last ones "
            "are the labels: ((b[:-1], b[-1]) for b in loader)."
        )
    return ""


def count_rows(inputs: ModelInput) -> int:
    """Return the number of items of a batch.

    Raises
    ------
    InputError
        For what has no length.
    """
    rows = _first_part(inputs)
    try:
        return len(rows)
    except (TypeError, RuntimeError) as error:  # RuntimeError: a nested tensor
        raise InputError(
            f"inputs hold a batch that is a {type(rows).__name__}, which has no rows: pass arrays, "
            "lists of texts, or mappings of them."
        ) from error


def rows_of_batch(inputs: ModelInput) -> int:
    """Return the number of items of a batch, for a bar; 1 for what has no length.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(5, 2)
    >>> rows_of_batch(x), rows_of_batch({"x": x}), rows_of_batch((x, x)), rows_of_batch(3)
    (5, 5, 5, 1)
    >>> rows_of_batch(torch.nested.nested_tensor([x]))
    1
    """
    try:
        return count_rows(inputs)
    except InputError:
        return 1


def _first_part(inputs: ModelInput) -> Any:
    """Return the batch itself, or the first of its several parts."""
    if isinstance(inputs, (Mapping, tuple)):
        return next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs), None)
    return inputs
