"""Labels that are given next to a loader: they belong to its rows only in a known order.

An order can be seen in a loader's sampler, and in that of the one loader that a bar, a wrapper, an
iterator or a generator holds. It cannot be seen in a data set that shuffles what it yields
(``IterableDataset``, a shuffle buffer): there, yield the labels as well. The index of a data frame
and that of a series tell rows in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from types import GeneratorType
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter, _InfiniteConstantSampler

from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._columns import Column
from laplace_metric.inputs._missing import check_missing
from laplace_metric.inputs._rows_in_errors import named_rows, row_of_call, rows_before


def why_unordered(loader: Any) -> str:
    """Return why rows of a loader are not those of its data set in their order; empty if they are.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> why_unordered(DataLoader([1, 2], shuffle=True))
    'draws its rows at random (RandomSampler)'
    >>> why_unordered(DataLoader([1, 2])), why_unordered([1, 2])
    ('', '')
    """
    if (inner := _held_by(loader)) is not None:
        return why_unordered(inner)
    if isinstance(loader, _BaseDataLoaderIter):
        return _of_sampler(loader._index_sampler)
    workers = getattr(loader, "num_workers", 0)
    if workers and getattr(loader, "in_order", True) is False:
        return "yields the batches of its workers as they come (in_order=False)"
    if workers > 1 and isinstance(getattr(loader, "dataset", None), IterableDataset):
        return f"mixes what its {workers} workers yield (IterableDataset)"
    for name in ("batch_sampler", "sampler"):
        if why := _of_sampler(getattr(loader, name, None)):
            return why
    if getattr(loader, "shuffle", False) is True:
        return "draws its rows at random (shuffle=True)"
    return ""


def _held_by(loader: Any) -> Any:
    """Return the one loader that a bar, a wrapper or a generator holds; None for none or several.

    The sampler of a loader decides; that of a generator which has begun is seen as well.
    """
    if isinstance(loader, (DataLoader, _BaseDataLoaderIter)) or hasattr(loader, "sampler"):
        return None
    held: Iterable[Any] = getattr(loader, "__dict__", {}).values()
    if isinstance(loader, GeneratorType):
        held = () if loader.gi_frame is None else loader.gi_frame.f_locals.values()
    elif isinstance(loader, map):
        held = loader.__reduce__()[1]
    kinds = DataLoader, _BaseDataLoaderIter, GeneratorType
    found = [value for value in held if isinstance(value, kinds)]
    return found[0] if len(found) == 1 else getattr(loader, "iterable", None)


def _of_sampler(sampler: Any) -> str:
    kind = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        inner, size = sampler.sampler, sampler.batch_size
        why = _of_sampler(inner)
        if why or not sampler.drop_last or not isinstance(inner, Sized):
            return why
        lost = len(inner) % size
        return f"leaves out its last {lost} rows (drop_last=True)" if lost else ""
    if isinstance(sampler, DistributedSampler):
        if sampler.shuffle:
            return f"draws its rows at random ({kind})"
        return f"yields the rows of one process ({kind})" if sampler.num_replicas > 1 else ""
    in_order = SequentialSampler, _InfiniteConstantSampler  # the second of an IterableDataset
    if not isinstance(sampler, Sampler) or isinstance(sampler, in_order):
        return ""
    at_random = "Random" in kind
    return f"draws its rows at random ({kind})" if at_random else f"chooses its rows by a {kind}"


def check_order(name: str, why: str, given: str = "labels=") -> None:
    """Refuse what is given row by row next to a loader in an order of its own.

    Parameters
    ----------
    name : str
        Argument that is the loader.
    why : str
        Result of ``why_unordered``.
    given : str
        Argument that is given next to it. Default: "labels=".

    Raises
    ------
    InputError
        If ``why`` is not empty.
    """
    if why:
        instead = "let the data set yield (input, label) and leave labels= out, or "
        raise InputError(
            f"{name} is a loader that {why}, so that the entries of {given} are not those of its "
            f"rows: {instead if given == 'labels=' else ''}read all of it in its own order, "
            "DataLoader(data, batch_size)."
        )


def check_index(name: str, index: Any, labels: Any) -> None:
    """Refuse labels whose pandas index is that of their rows in another order.

    Parameters
    ----------
    name : str
        Argument that has the rows.
    index : pandas.Index or None
        Index of the rows; None, and anything else, has no order of its own.
    labels : any
        Labels, of which a series has an index.

    Raises
    ------
    LabelError
        If both hold the same entries in another order.
    """
    other: Any = getattr(labels, "index", None)
    if not (hasattr(index, "equals") and hasattr(other, "equals")) or index.equals(other):
        return
    same = False
    with suppress(TypeError):  # entries of several types have no order
        same = index.sort_values().equals(other.sort_values())
    if same:
        row = int((index.to_numpy() != other.to_numpy()).argmax())
        mine, theirs = (x[row : row + 1].tolist()[0] for x in (index, other))
        raise LabelError(
            f"labels and {name} have one index in two orders: row {row} is {theirs!r} in the "
            f"labels and {mine!r} in {name}. Pass labels.loc[{name}.index], or both as "
            "arrays, .to_numpy(), if their rows belong together as they stand."
        )


def check_not_items(name: str, data: Any, labels: Any) -> None:
    """Refuse a list of single items, such as images, with a label each: lists hold batches.

    Raises
    ------
    InputError
        If there are as many labels as tensors or arrays of two dimensions or more, and not as many
        as these have rows.
    """
    if not isinstance(data, (list, tuple)) or len(data) < 2 or len(data) != _length(labels):
        return
    if not all(isinstance(item, (Tensor, np.ndarray)) and item.ndim > 1 for item in data):
        return
    if sum(len(item) for item in data) == len(data):
        return
    shapes = sorted({tuple(item.shape) for item in data})
    advice = "pass them as one array, torch.stack(items) or numpy.stack(items)"
    if len(shapes) > 1:
        advice = (
            f"they are of unequal size, {shapes[0]} and {shapes[1]} among them: bring them to one "
            "size (torchvision.transforms.Resize) and pass torch.stack(items), or a loader that "
            "does so"
        )
    raise InputError(
        f"{name} is a list of {len(data)} arrays with a label each, and a list is read as batches: "
        f"{advice}."
    )


def _length(labels: Any) -> int:
    return len(labels) if hasattr(labels, "__len__") else -1


def compared(batches: Iterable[Any], labels: Any) -> Iterator[Any]:
    """Yield batches, whose own labels must be those that were given for their rows.

    Names next to whole numbers must stand for the same classes, one name for each number.

    Raises
    ------
    LabelError
        Names the first row that differs.
    """
    given, n_read, names = None, 0, dict[Any, Any]()
    for batch in batches:
        if batch.labels is not None:
            with rows_before(n_read):
                if given is None:
                    check_missing("labels", labels)
                    given = labels if isinstance(labels, Column) else Column.of("labels", labels)
                own = Column.of("labels of the loader", batch.labels)
                _check_same(given.take(slice(n_read, n_read + len(own))), own, names)
            n_read += len(own)
        yield batch


def _check_same(given: Column, own: Column, names: dict[Any, Any]) -> None:
    """Compare as many rows as both have: how many there are is checked where all were read."""
    pairs = list(zip(given.values.tolist(), own.values.tolist(), strict=False))
    if given.is_text == own.is_text:
        differ = [row for row, (a, b) in enumerate(pairs) if a != b]
    else:
        differ = [
            row
            for row, (a, b) in enumerate(pairs)
            if names.setdefault((0, a), b) != b or names.setdefault((1, b), a) != a
        ]
    if differ:
        a, b = pairs[differ[0]]
        raise LabelError(
            f"labels is {a!r} in row {row_of_call(differ[0])}, where the loader itself yields the "
            f"label {b!r}; they differ in {named_rows(differ, len(pairs))}. Leave labels= out, or "
            "yield inputs alone, (x for x, _ in loader)."
        )
