"""``Inputs``: the data of one call, read once.

A public call reads what it was given first thing, and passes this value on. What is behind it gets
batches as a model takes them, and need not ask what kind of thing the caller passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.validation import check_dense
from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._arrays import read_numbers, tensor_of_rows
from laplace_metric.inputs._batches import (
    ModelInput,
    count_rows,
    labelled_parts,
    labels_of,
    read_batch,
)
from laplace_metric.inputs._by_row import count_inputs, take_inputs
from laplace_metric.inputs._class_names import note_names
from laplace_metric.inputs._columns import Column
from laplace_metric.inputs._given_labels import (
    check_index,
    check_not_items,
    check_order,
    compared,
    why_unordered,
)
from laplace_metric.inputs._labels import check_labels, joined_labels
from laplace_metric.inputs._loaders import as_batches, items_of, yields_items, yields_pairs
from laplace_metric.inputs._no_data import (
    check_holds_data,
    check_not_one_image,
    check_not_swapped,
)
from laplace_metric.inputs._not_classes import check_noise
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.inputs._texts import gathered_texts, grouped_texts

BATCH = 256
"""Rows of one array, or texts of one list, that enter the model at once."""


@dataclass(frozen=True)
class Batch:
    """Some items of a call.

    Parameters
    ----------
    inputs : ModelInput
        Inputs as a model takes them.
    labels : Tensor [B] of int64, list of names, or None
        Labels of the items; in labelled ``Inputs`` always the tensor, with the codes of class
        names. Default: None.
    """

    inputs: ModelInput
    labels: Any = None


@dataclass(frozen=True)
class Inputs:
    """The data of one call in batches; read as often as their source can be read.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    source : function
        Begins the batches anew.
    labelled : bool
        True if each batch has its labels.
    count : int or None
        Number of items; None: not known before they are read.
    n_batches : int or None
        Number of batches; None: not known.
    labels : Column, array, list or None
        Labels [N] that were given next to the inputs, as the caller gave them. Those that batches
        have are compared with them.
    unordered : str
        Why rows do not come in the order of their data set; empty if they do, or if it is not
        known.
    names : dict
        Name of each class code of the batches that were read, where labels are names.
    index : pandas.Index or None
        Index of a data frame. Default: None.

    Examples
    --------
    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(300, 2), torch.arange(300))
    >>> for given in (data, [(torch.ones(300, 2), torch.arange(300))]):
    ...     [len(batch.labels) for batch in read_inputs("data", given)]
    [256, 44]
    [300]
    """

    name: str
    source: Callable[[], Iterator[Batch]]
    labelled: bool = False
    count: int | None = None
    n_batches: int | None = None
    labels: Any = None
    unordered: str = ""
    names: dict[int, str] = field(default_factory=dict)
    index: Any = None

    def __iter__(self) -> Iterator[Batch]:
        return self.source()

    def beside(self, labels: Any) -> Inputs:
        """Return the same inputs, next to which labels [N] are given; None: none are.

        Raises
        ------
        InputError
            If rows come in another order than that of their data set.
        LabelError
            If rows and labels have one index in two orders; when they are read, if batches have
            other labels.
        """
        if labels is None:
            return self
        check_order(self.name, self.unordered)
        check_index(self.name, self.index, labels)
        return replace(self, labels=labels, source=lambda: compared(self, labels))

    def check_columns(self, **given: Any) -> None:
        """Refuse what is given row by row next to rows in an order of their own.

        Parameters
        ----------
        **given : any
            Arguments by name; None was not given.

        Raises
        ------
        InputError
            If rows come in another order than that of their data set.
        """
        for name, column in given.items():
            if column is not None:
                check_order(self.name, self.unordered, f"{name}=")

    @classmethod
    def of_batches(
        cls, name: str, batches: Iterable[tuple[ModelInput, Any]], *, labelled: bool = False
    ) -> Inputs:
        """Hold batches that were read before: pairs of inputs and labels."""
        held = [Batch(inputs, labels) for inputs, labels in batches]
        count = sum(len(batch.labels) for batch in held) if labelled else None
        return cls(name, lambda: iter(held), labelled, count, len(held))

    def held(self) -> Inputs:
        """Return the same inputs with all batches in memory, so that they can be read again."""
        batches = list(self)
        return replace(self, source=lambda: iter(batches), n_batches=len(batches))

    def with_column(self) -> tuple[list[ModelInput], Column, list[int]]:
        """Return all batches, the label of each item [N], and the number of items of each batch.

        Raises
        ------
        LabelError
            Without labels.
        InputError
            For another number of labels than of items.
        """
        batches = list(self)
        sizes = [count_rows(b.inputs) if b.labels is None else len(b.labels) for b in batches]
        labels = self.labels
        if labels is None:
            labels = joined_labels([b.labels for b in batches if b.labels is not None])
        if labels is None:
            if batches and isinstance(batches[0].inputs, tuple):
                labelled_parts(batches[0].inputs, 0)  # says what the batch is, and how to split it
            raise LabelError("items have no labels: pass labels=, or a loader that yields them.")
        return [b.inputs for b in batches], Column.of_labels(labels, sum(sizes)), sizes


def read_inputs(name: str, data: Any, labels: Any = None, *, labelled: bool = False) -> Inputs:
    """Read what a caller passed; ``Inputs`` are returned as they are.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    data : any
        An array, a data frame, rows of numbers, texts in anything that holds them, a mapping of
        tensors, a data set of single items, or a loader of batches, which may have labels.
    labels : [N] whole numbers or names, or None
        Labels of the items, if they are given next to them.
    labelled : bool
        True if each batch must have its labels. A pair is then inputs and labels, whatever the
        second entry is.

    Raises
    ------
    InputError
        For anything else; for batches when they are read.
    LabelError
        If ``labelled``, for arrays without labels; when they are read, for batches without labels,
        and another number of labels than of inputs.

    Examples
    --------
    >>> inputs = read_inputs("queries", np.ones((300, 2)))
    >>> inputs.count, inputs.n_batches, [len(batch.inputs) for batch in inputs]
    (300, 2, [256, 44])
    """
    if isinstance(data, Inputs):
        if labelled and not data.labelled:
            given = data.labels if labels is None else labels
            return _with_own_labels(data) if given is None else _with_labels(data, given)
        if data.labelled and not labelled:
            data = _with_names(data)
        return data.beside(labels)
    if labels is None and not labelled:
        check_not_one_image(name, data)
    if labels is not None:
        check_not_swapped(name, data, labels)
        check_not_items(name, data, labels)
    if labelled:
        return _labelled(name, data) if labels is None else _with_labels(_read(name, data), labels)
    return _read(name, data).beside(labels)


def read_loader(name: str, data: Any) -> Inputs:
    """Read a loader of batches; one batch alone is refused.

    Raises
    ------
    InputError
        For a tensor or a mapping.
    """
    if isinstance(data, (Tensor, Mapping)):
        raise InputError(f"{name} is a {type(data).__name__}: pass an iterable of batches.")
    return read_inputs(name, data)


def read_items(name: str, data: Any, labels: Any = None) -> Inputs:
    """Read items that are held in memory and can be taken by row, in batches of ``BATCH``.

    A list may hold anything that its encoder takes, such as images; a mapping has one entry an
    item in each of its parts.

    Raises
    ------
    InputError
        For what cannot be counted, or holds nothing.

    Examples
    --------
    >>> [len(batch.inputs["x"]) for batch in read_items("images", {"x": np.ones((300, 2))})]
    [256, 44]
    """
    if isinstance(data, Inputs):
        return data.beside(labels)
    data = read_numbers(name, gathered_texts(name, data))
    n = count_inputs(name, data)

    def source() -> Iterator[Batch]:
        for start in range(0, n, BATCH):
            yield Batch(take_inputs(data, torch.arange(start, min(start + BATCH, n))))

    return Inputs(name, source, count=n, n_batches=-(-n // BATCH), labels=labels)


def _read(name: str, data: Any) -> Inputs:
    """Read arrays, texts, a mapping, or a loader whose batches may have labels."""
    check_holds_data(name, data)
    index = getattr(data, "index", None)
    if hasattr(index, "equals"):
        return replace(_read(name, data.to_numpy()), index=index)
    unordered = why_unordered(data)  # before an iterator is looked into
    if isinstance(data, Tensor) and data.ndim:
        data = check_dense(name, data)
    else:
        data = read_numbers(name, gathered_texts(name, data))
    if isinstance(data, np.ndarray) and data.dtype.kind == "O":
        data = data.tolist()
    if isinstance(data, (Tensor, np.ndarray)):
        return _of_array(name, data)
    if isinstance(data, (list, tuple)) and all(isinstance(x, str) for x in data):
        return _of_rows(name, data)
    if isinstance(data, Mapping):
        return Inputs(name, lambda: iter([_batch_of(name, data)]))
    loader = as_batches(data)
    return Inputs(
        name,
        lambda: (_batch_of(name, batch) for batch in _iterated(name, loader)),
        count=items_of(loader),
        n_batches=length_hint(loader) or None,
        unordered=unordered or why_unordered(loader),
    )


def _of_array(name: str, array: Any) -> Inputs:
    if array.ndim == 0:
        raise InputError(f"{name} is a single number: pass an array of items.")
    if array.ndim > 1:
        return _of_rows(name, array)
    # one item, or a number for each: the model decides
    return Inputs(name, lambda: iter([Batch(tensor_of_rows(name, array))]))


def _of_rows(name: str, rows: Any) -> Inputs:
    """Cut an array, or a list of texts, into batches."""
    starts = range(0, len(rows), BATCH)

    def source() -> Iterator[Batch]:
        for start in starts:
            yield Batch(tensor_of_rows(name, rows[start : start + BATCH]))

    return Inputs(name, source, count=len(rows), n_batches=len(starts))


def _batch_of(name: str, batch: Any) -> Batch:
    inputs, labels = labels_of(batch)
    return Batch(read_batch(name, inputs), labels)


def _iterated(name: str, loader: Any) -> Iterator[Any]:
    try:
        entries = iter(loader)
    except TypeError as error:
        raise InputError(
            f"{name} is a {type(loader).__name__}: pass an array, a list of texts, a mapping of "
            f"tensors, or an iterable of batches ({error})."
        ) from error
    return grouped_texts(name, entries)


def _labelled(name: str, data: Any) -> Inputs:
    """Read a loader of ``(inputs, labels)``."""
    check_holds_data(name, data)
    if not yields_pairs(data):
        kind, data = type(data).__name__, read_numbers(name, gathered_texts(name, data))
        texts = isinstance(data, list) and any(isinstance(x, str) for x in data)
        if isinstance(data, (Tensor, np.ndarray)) or texts:
            raise LabelError(f"{name} is a {kind} without labels: pass fit(inputs, labels).")
        data = [data] if isinstance(data, Mapping) else as_batches(data)
    names = dict[int, str]()

    def source() -> Iterator[Batch]:
        pairs = (labelled_parts(batch, i) for i, batch in enumerate(_iterated(name, data)))
        return _coded(name, pairs, names)

    hint = length_hint(data) or None
    unordered = why_unordered(data)
    return Inputs(name, source, True, items_of(data), hint, unordered=unordered, names=names)


def _coded(name: str, pairs: Iterable[tuple[Any, Any]], names: dict[int, str]) -> Iterator[Batch]:
    """Yield inputs with the codes of their labels, and note the names of these codes."""
    n_read = 0
    for index, (inputs, labels) in enumerate(pairs):
        with rows_before(n_read):
            codes = check_labels(labels, name=f"labels of loader batch {index}")
            inputs = read_batch(name, inputs)
        n_read += len(codes)
        if names or not isinstance(labels, Tensor):
            note_names(names, labels, codes, first=index == 0)
        yield Batch(inputs, codes)


def _with_own_labels(inputs: Inputs) -> Inputs:
    """Return the same inputs; a batch without labels is then an error."""
    names = dict[int, str]()

    def source() -> Iterator[Batch]:
        pairs = (
            labelled_parts(b.inputs, i) if b.labels is None else (b.inputs, b.labels)
            for i, b in enumerate(inputs)
        )
        return _coded(inputs.name, pairs, names)

    return replace(inputs, source=source, labelled=True, names=names)


def _with_names(inputs: Inputs) -> Inputs:
    """Give each batch the names of its labels back, where labels are names."""

    def source() -> Iterator[Batch]:
        for batch in inputs:
            codes = batch.labels.tolist() if inputs.names else []
            yield replace(batch, labels=[inputs.names[code] for code in codes] or batch.labels)

    return replace(inputs, source=source, labelled=False)


def _with_labels(inputs: Inputs, labels: Any) -> Inputs:
    """Give each batch its part of labels [N].

    Raises
    ------
    LabelError
        For labels that are no classes; when read, for another number of labels than of inputs.
    """
    given = labels.values if isinstance(labels, Column) else labels
    codes, names = check_labels(given), dict[int, str]()
    check_noise("labels", codes.cpu().numpy())
    note_names(names, given, codes, first=True)
    inputs = inputs.beside(labels)
    return replace(
        inputs,
        source=lambda: _parts(inputs, codes),
        labelled=True,
        count=len(codes),
        labels=labels,
        names=names,
    )


def _parts(inputs: Inputs, codes: Int[Tensor, " N"]) -> Iterator[Batch]:
    start, n = 0, len(codes)
    for batch in inputs:
        stop = start + count_rows(batch.inputs)
        if stop > n:
            break
        yield Batch(batch.inputs, codes[start:stop])
        start = stop
    else:
        stop = start
    if stop != n:
        at_least = "" if stop < n else "at least "
        raise LabelError(f"labels has {n} entries for {at_least}{stop} inputs: pass one for each.")


def labels_beside(name: str, data: Any, labels: Any) -> tuple[Any, Any]:
    """Return data that holds items alone, and their labels, which a loader may yield with them.

    Parameters
    ----------
    name : str
        Name of the argument, for errors.
    data, labels : Any, Any or None
        Data, and the labels that were given next to it.

    Examples
    --------
    >>> import torch
    >>> pairs = torch.utils.data.TensorDataset(torch.ones(3, 2), torch.arange(3))
    >>> items, labels = labels_beside("items", pairs, None)
    >>> [len(batch.inputs) for batch in items], labels
    ([3], array([0, 1, 2]))
    """
    check_holds_data(name, data)
    check_not_swapped(name, data, labels)
    check_index(name, getattr(data, "index", None), labels)
    data = list(data) if isinstance(data, Iterator) else data
    if isinstance(data, Inputs):
        return data, data.labels if labels is None else labels
    if not (yields_items(data) or yields_pairs(data) or _holds_pairs(data)):
        return data, labels
    inputs = read_inputs(name, data, labels).held()
    if labels is None and all(batch.labels is None for batch in inputs):
        return inputs, None
    return inputs, inputs.with_column()[1].values


def _holds_pairs(data: Any) -> bool:
    """Return whether a list holds batches (vectors [n, D], labels [n])."""
    first = data[0] if isinstance(data, list) and data else None
    return isinstance(first, tuple) and len(first) == 2 and getattr(first[0], "ndim", 0) == 2
