"""Conversion of users' inputs into what the package computes with.

Class names become whole numbers, data frames arrays, rows of numbers one array, data sets of single
items loaders of batches. A class is known by its name alone, wherever it is read:

    code(name) = first 63 bits of sha256(name)

so that batches, processes and a fit that goes on after a kill agree without a table of names.

Blocks of points, what may be appended, and the checks of what is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from laplace_metric._utils.validation import check_dense, check_not_sparse, stacked_cells
from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.models._rows import bad_rows, named_rows, rows_of_this_batch

LABELS = ("labels", "label")
"""Entries of a batch that is a mapping by which its labels go, as in Hugging Face's data sets."""
BATCH_OF_ITEMS = 256
"""Items of a data set that enter a model at once."""
BATCH_OF_IMAGES = 64
"""The same of our own image sets: inside a network, photographs are large."""


def plain(values: Any) -> Any:
    """A data frame or a series as an array; everything else as it is.

    Examples
    --------
    >>> import pandas
    >>> plain(pandas.Series(["a", "b"])), plain([1, 2])
    (array(['a', 'b'], dtype=object), [1, 2])
    """
    if isinstance(values, (Tensor, np.ndarray)) or not hasattr(values, "to_numpy"):
        return values
    array = values.to_numpy()
    return array.astype(object) if array.dtype.kind == "T" else array


def dense(name: str, values: Any) -> Any:
    """As ``plain``, with a column of vectors stacked to [N, D].

    Raises
    ------
    InputError
        For a sparse matrix, and vectors of unequal shape.
    """
    check_not_sparse(name, values)
    values = plain(values)
    return stacked_cells(name, values) if isinstance(values, np.ndarray) else values


def names_of(labels: Any) -> list[str] | None:
    """Class names as a list; None where labels are anything else.

    Examples
    --------
    >>> names_of(np.array(["cat", "dog"])), names_of([0, 1])
    (['cat', 'dog'], None)
    """
    labels = plain(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "UO":
        labels = labels.tolist()
    if not isinstance(labels, (list, tuple)) or not labels:
        return None
    return [str(name) for name in labels] if all(isinstance(x, str) for x in labels) else None


def missing_rows(labels: Any) -> list[int]:
    """Return the rows whose label is None, not a number or not a time.

    Examples
    --------
    >>> missing_rows(["cat", None, "dog", float("nan")]), missing_rows(np.arange(3))
    ([1, 3], [])
    """
    labels = plain(labels)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "Of":
        labels = labels.tolist()
    if not isinstance(labels, (list, tuple)):
        return []
    kinds = ("NoneType", "NAType", "NaTType")  # the last two of pandas
    return [
        row
        for row, label in enumerate(labels)
        if type(label).__name__ in kinds
        or (isinstance(label, float) and math.isnan(label))
        or (isinstance(label, np.datetime64) and np.isnat(label))
    ]


def check_names(name: str, names: Sequence[str]) -> None:
    """Refuse a class without a name: a blank cell of a table is a label that is missing.

    Raises
    ------
    LabelError
        Names the rows.
    """
    if empty := [row for row, text in enumerate(names) if not text.strip()]:
        raise LabelError(
            f"{name} is an empty text in {named_rows(empty, len(names))}: leave "
            "these items out, or name their class."
        )


def class_codes(names: Sequence[str]) -> Int[Tensor, " N"]:
    """A whole number [N] for each class name, the same in every process.

    Two of a million names share a number with a probability of 5e-8.

    Examples
    --------
    >>> codes = class_codes(["cat", "dog", "cat"])
    >>> bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    (True, False)
    """
    digests = {
        name: hashlib.sha256(name.encode(errors="surrogatepass")).digest() for name in set(names)
    }
    codes = {name: int.from_bytes(digest[:8], "big") >> 1 for name, digest in digests.items()}
    return torch.tensor([codes[name] for name in names], dtype=torch.int64)


def note_names(known: dict[int, str], labels: Any, codes: Tensor, *, first: bool) -> None:
    """Keep which name a code stands for.

    Raises
    ------
    LabelError
        If some batches have names and others numbers, or two names one code.
    """
    names = names_of(labels)
    if not first and (names is None) != (not known):
        raise LabelError("some batches have class names, others numbers: pass one of the two.")
    for code, name in set(zip(codes.tolist(), names or [], strict=False)):
        if known.setdefault(code, name) != name:
            raise LabelError(f"classes {known[code]!r} and {name!r} share a code: rename one.")


def is_rows(values: Any) -> bool:
    """Return whether a list holds rows of numbers rather than inputs of a model.

    Examples
    --------
    >>> is_rows([[0.1, 0.2], [0.3, 0.4]]), is_rows([torch.ones(2), torch.ones(2)]), is_rows(["a"])
    (True, False, False)
    """
    if not isinstance(values, list) or not values:
        return False
    if all(isinstance(row, list) and row for row in values):
        return all(_is_number(x) for row in values for x in row)
    return all(_is_number(x) for x in values)


def is_one_item(inputs: Any) -> bool:
    """Return whether inputs are one row of numbers [D].

    Examples
    --------
    >>> is_one_item(torch.ones(3)), is_one_item([0.5, 1.0]), is_one_item(torch.ones(1, 3))
    (True, True, False)
    """
    inputs = plain(inputs)
    if isinstance(inputs, (Tensor, np.ndarray)):
        return inputs.ndim == 1
    return is_rows(inputs) and not isinstance(inputs[0], list)


def as_batch(item: Any) -> Any:
    """One row of numbers [D] as [1, D]."""
    item = plain(item)
    return [item] if isinstance(item, list) else item[None]


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """The two parts of a pair, or a mapping without its labels and these; labels may be None.

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


def yields_items(data: Any) -> bool:
    """Return whether a data set gives one item with its label at a time, not batches of them.

    Seen at its first item: a label that is one number or one name. Our own data sets, such as
    ``datasets.ImageFolder``, are known by their ``loader``.

    Examples
    --------
    >>> x, y = torch.ones(4, 2), torch.arange(4)
    >>> yields_items(torch.utils.data.TensorDataset(x, y)), yields_items([(x, y)])
    (True, False)
    """
    if isinstance(data, (str, bytes, Tensor, np.ndarray, Mapping)):
        return False
    if _has_loader(data):
        return True
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or not len(data):
        return False
    try:
        first = data[0]
    except (LookupError, TypeError):
        return False
    item, label = split_batch(first)
    if isinstance(first, (tuple, list)) and (
        _is_number(item) or (isinstance(item, str) and isinstance(data, (list, tuple)))
    ):
        return False  # two numbers, or a batch of two texts
    if isinstance(label, (Tensor, np.ndarray)):
        return label.ndim == 0
    return isinstance(label, (str, int, np.integer)) and not isinstance(label, bool)


def _has_loader(data: Any) -> bool:
    return hasattr(data, "__len__") and callable(getattr(data, "loader", None))


def items_of(loader: Any) -> int | None:
    """Return how many items the batches of a loader hold; None where it does not say.

    Examples
    --------
    >>> items_of(DataLoader([0] * 700, batch_size=64)), items_of([torch.ones(5)])
    (700, None)
    """
    if not isinstance(loader, DataLoader):
        n: int | None = getattr(loader, "n_items", None)
        return n
    if loader.batch_size is None or not isinstance(loader.sampler, Sized):
        return None
    n = len(loader.sampler)
    return n - n % loader.batch_size if loader.drop_last else n


def as_batches(data: Any) -> Any:
    """A data set of single items as a loader of batches, in their order; else the data themselves.

    Parameters
    ----------
    data : torch Dataset, or anything with a length whose items are ``(input, label)`` or mappings,
        or that has a function ``loader`` of the batch size; or a loader

    Raises
    ------
    InputError
        When read, for items that are no tensors, arrays, numbers or strings of one shape.

    Examples
    --------
    >>> data = torch.utils.data.TensorDataset(torch.ones(300, 2), torch.arange(300))
    >>> [len(labels) for _, labels in as_batches(data)]
    [256, 44]
    """
    if not yields_items(data):
        return data
    if _has_loader(data):
        return data.loader(BATCH_OF_IMAGES)
    own = torch.Generator()  # a DataLoader draws a seed each time that it is read
    return DataLoader(data, batch_size=BATCH_OF_ITEMS, collate_fn=_collated, generator=own)


def _collated(items: list[Any]) -> Any:
    try:
        return default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"items of the data set cannot be put together to a batch ({error}): give it a "
            "transform that makes tensors of one shape, or pass a DataLoader with its own "
            "collate_fn."
        ) from error


# Blocks of points, what may be appended, and the checks of what is.

RowSpec = tuple[Tensor, Tensor]
"""Features [0, D] and labels [0]: the width and the types of all rows."""

CHECKS_AT_ONCE = 1024
"""Batches on an accelerator whose check may be outstanding."""


@dataclass
class Derived:
    """Tensors computed from the blocks of a source, of one owner at a time, for their next reading.

    Parameters
    ----------
    n_bytes : int
        How many may be kept.
    kept : Kept
        Replaced by that of another owner, never changed to it: of several threads with owners of
        their own each gets what is its own.
    """

    n_bytes: int
    kept: Kept


@dataclass
class Kept:
    """Objects of one owner: tensors by start and rows of their block, and the bytes left."""

    owner: tuple[object, ...]
    bytes_left: int
    tensors: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Rows ``start`` to ``stop`` of a source: features [n, D] and labels [n].

    Examples
    --------
    >>> block = Block(64, torch.ones(3, 5), torch.zeros(3, dtype=torch.int64))
    >>> len(block), block.stop
    (3, 67)
    """

    start: int
    features: Float[Tensor, "n D"]
    labels: Int[Tensor, " n"]
    derived: Derived | None = None
    """Where what is computed from the block may be kept, for its next reading."""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def stop(self) -> int:
        """The row after the last one: where the next block starts."""
        return self.start + len(self)


def check_shapes(features: Tensor, labels: Tensor, *, where: str) -> None:
    """Features must be floats [N, D] with one label a row.

    Raises
    ------
    InputError
        If features are something else.
    LabelError
        If the numbers of rows differ.
    """
    check_dense(where, features)
    check_dense(f"labels of {where}", labels)
    if features.ndim != 2 or not features.is_floating_point():
        raise InputError(
            f"{where} is {features.dtype} {tuple(features.shape)}: pass floats [N, D]."
        )
    if len(features) != len(labels):
        raise LabelError(f"{where} has {len(features)} rows but {len(labels)} labels.")


def check_spec(features: Tensor, labels: Tensor, spec: RowSpec | None, *, where: str) -> None:
    """Raise ``InputError`` unless the rows have the width and the types of earlier ones."""
    names, rows = ("features", "labels"), (features, labels)
    for name, now, before in zip(names, rows, spec or rows, strict=True):
        if (now.dtype, now.shape[1:]) != (before.dtype, before.shape[1:]):
            raise InputError(
                f"{where} has {name} {now.dtype} {tuple(now.shape)}, earlier ones are "
                f"{before.dtype} of shape {('N', *before.shape[1:])}: pass rows of one kind."
            )


def check_finite(features: Float[Tensor, "n D"], *, where: str) -> None:
    """Raise ``NonFiniteError`` that names the rows, if some hold NaN or infinity."""
    if features.numel() and not _finite(features):
        rows = bad_rows((~torch.isfinite(features)).any(1))
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {rows}: check these inputs and the model's weights."
        )


def _finite(features: Float[Tensor, "n D"]) -> Bool[Tensor, ""]:
    low, high = features.aminmax()  # one pass, NaN propagates, nothing [N, D] is allocated
    return torch.isfinite(low) & torch.isfinite(high)


class FiniteChecks:
    """``check_finite`` at once on the CPU; on an accelerator later, so that nothing waits for it.

    Examples
    --------
    >>> checks = FiniteChecks()
    >>> checks.add(torch.ones(2, 3), where="batch 0")
    >>> checks.settle()
    """

    def __init__(self) -> None:
        self.pending: list[tuple[str, Tensor]] = []

    def add(self, features: Tensor, *, where: str) -> None:
        """Check features [n, D], or note a flag on their device."""
        if not _later(features.device):
            check_finite(features, where=where)
        elif features.numel():
            where = f"{where} ({rows_of_this_batch(len(features))})"
            self.pending.append((where, _finite(features)))
            if len(self.pending) >= CHECKS_AT_ONCE:
                self.settle()

    def settle(self) -> None:
        """Raise ``NonFiniteError`` for the first bad batch, each time it is called after one."""
        if not self.pending:
            return
        flags = torch.stack([flag for _, flag in self.pending]).tolist()  # the one synchronisation
        bad = [where for (where, _), finite in zip(self.pending, flags, strict=True) if not finite]
        if bad:
            raise NonFiniteError(
                f"{bad[0]} holds NaN or infinity: check the inputs and the model's weights."
            )
        self.pending.clear()


def _later(device: torch.device) -> bool:
    return device.type == "cuda"
