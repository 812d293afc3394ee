"""Ids and labels: one whole number or one string for each item.

Items of an index, row by row: embeddings, ids and labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.validation import as_array, check_dense
from laplace_metric.errors import InputError, LabelError
from laplace_metric.models._classes import (
    IS_A_CLASS,
    NOISE,
    check_missing,
    check_noise,
)
from laplace_metric.models._reading import check_names, missing_rows, plain
from laplace_metric.models._rows import row_list

Values = npt.NDArray[Any]
"""[N] int64, or objects that are strings: NumPy's own drop NUL at the end, and pad all of them to
the longest."""
LARGEST = 2**63 - 1
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
SURROGATES = "surrogatepass"
"""Names of files that are not UTF-8 hold lone surrogates."""


@dataclass(frozen=True)
class Column:
    """One whole number or one string an item, kept in that type.

    Examples
    --------
    >>> Column.of("labels", ["cat", "dog", "cat"]).codes_of(["dog", "bird"]).tolist()
    [1, -1]
    """

    values: Values

    @classmethod
    def of(cls, name: str, values: Any, length: int | None = None) -> Column:
        """Checked entries.

        Raises
        ------
        InputError
            Unless each is a whole number or each a string, and there are ``length`` of them.
        """
        array = _array(name, values)
        if length is not None and len(array) != length:
            raise InputError(
                f"{name} has {len(array)} entries for {length} items: pass one for each."
            )
        return cls(array)

    @classmethod
    def of_labels(
        cls,
        values: Any,
        length: int | None = None,
        known: Column | None = None,
        otherwise: str = IS_A_CLASS,
    ) -> Column:
        """Checked classes, none of them missing or without a name.

        Parameters
        ----------
        values : [N] whole numbers or strings
        length : int or None
            Number of items; None: any.
        known : Column or None
            Labels of the index; where -1 is one of them, it is a class here, too.
        otherwise : str
            End of the message about -1 (``models._classes``): what to do if it is no noise.

        Raises
        ------
        InputError
            As ``of``.
        LabelError
            For labels that are missing, an empty text, and scikit-learn's mark of noise.
        """
        check_missing("labels", values)
        column = cls.of("labels", values, length)
        if not column.is_text and (known is None or not (known.values == NOISE).any()):
            check_noise("labels", column.values, otherwise)
        if column.is_text:
            check_names("labels", column.values.tolist())
        return column

    @property
    def is_text(self) -> bool:
        """True if the entries are strings."""
        return self.values.dtype == object

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Any) -> Column:
        """The entries at ``index``, in its shape."""
        return Column(self.values[index])

    def joined(self, name: str, other: Column) -> Column:
        """With those of ``other`` behind, of the same type."""
        self.check_like(name, other)
        return Column(np.concatenate([self.values, other.values]))

    def check_like(self, name: str, other: Column) -> None:
        """Refuse ``other`` if one has numbers and the other strings.

        Raises
        ------
        InputError
            Then.
        """
        if self.is_text != other.is_text:
            kinds = ["strings" if c.is_text else "numbers" for c in (self, other)]
            raise InputError(f"{name} are {kinds[0]} in the index and {kinds[1]} here.")

    def duplicates(self) -> list[Any]:
        """Entries that stand more than once."""
        unique, counts = np.unique(self.values, return_counts=True)
        return unique[counts > 1].tolist()

    def codes_of(self, values: Any) -> npt.NDArray[np.int64]:
        """First position of each value among the sorted unique entries; -1 where it is none."""
        unique, column = np.unique(self.values), Column.of("values", values)
        if column.is_text != self.is_text:
            return np.full(len(column), -1)
        codes = np.searchsorted(unique, column.values).clip(max=len(unique) - 1)
        return np.where(unique[codes] == column.values, codes, -1)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the entries as tensors: numbers, or the bytes of all strings and their ends."""
        if not self.is_text:
            return {name: torch.from_numpy(self.values)}
        encoded = [value.encode(errors=SURROGATES) for value in self.values]
        ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        text = np.frombuffer(b"".join(encoded), dtype=np.uint8).copy()
        return {f"{name}.text": torch.from_numpy(text), f"{name}.ends": torch.from_numpy(ends)}

    @classmethod
    def from_tensors(cls, name: str, tensors: dict[str, Tensor]) -> Column | None:
        """Read the result of ``tensors``; None if there is nothing of that name."""
        if name in tensors:
            return cls(tensors[name].numpy())
        if f"{name}.text" not in tensors:
            return None
        text = tensors[f"{name}.text"].numpy().tobytes()
        ends = tensors[f"{name}.ends"].tolist()
        starts = [0, *ends[:-1]]
        spans = zip(starts, ends, strict=True)
        return cls(_objects([text[a:b].decode(errors=SURROGATES) for a, b in spans]))


def _array(name: str, values: Any) -> Values:
    values, whole = plain(values), False
    if isinstance(values, Tensor):
        if values.dtype not in UNSIGNED:
            check_dense(name, values)
        if values.is_floating_point():  # NumPy has no bfloat16
            raise InputError(f"{name} are {values.dtype}: pass whole numbers, one for each item.")
        values = values.detach().cpu().resolve_neg().numpy()
    elif not isinstance(values, np.ndarray):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(f"{name} is a {type(values).__name__}: pass a list or an array.")
        whole = len(values) > 0 and all(type(value) is int for value in values)
        if whole or any(isinstance(value, str) for value in values):
            values = _objects(values)  # NumPy makes floats of numbers beyond int64
    array = as_array(name, values)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}: pass one entry for each item.")
    if whole or array.dtype.kind in "iu":
        outside = (array > LARGEST) | (array < -LARGEST - 1)
        if outside.any():
            raise InputError(
                f"{name} hold {outside.sum()} numbers that int64 cannot, {array[outside][0]} the "
                "first: pass them as strings."
            )
        return array.astype(np.int64)
    if array.dtype.kind == "U" or all(isinstance(value, str) for value in array):
        return _objects([str(value) for value in array])
    wrong = f"{name} are {array.dtype}"
    if missing := missing_rows(array):
        wrong = f"{name} are missing in {row_list(missing)} ({len(missing)} of {len(array)})"
    raise InputError(f"{wrong}: pass whole numbers or strings, one for each item.")


def _objects(values: Sequence[Any]) -> Values:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


# Items of an index, row by row: embeddings, ids and labels.

LARGE_BYTES = 2**26
"""Of means, from which batches are joined."""


@dataclass(frozen=True)
class Encoded:
    """N uncertain embeddings, as small as search allows.

    Parameters
    ----------
    mean : Tensor [N, Z]
        The embedding to search with (unit length on the sphere).
    trace : Tensor [N]
        Of its covariance: ``Embedding.uncertainty``.
    epistemic : Tensor [N]
        ``Embedding.epistemic``; the uncertainty again where the fit keeps nothing to compare with,
        and 1e6 where nothing but zeros enters the head.
    basis_inputs : Tensor [N, A]
        What entered the head, in the eigenbasis of the posterior where it has one: with them,
        distances know that both embeddings share their weights. Of images and texts, which share
        none, the variance of each coordinate; of a compact index nothing (A = 0).
    """

    mean: Float[Tensor, "N Z"]
    trace: Float[Tensor, " N"]
    epistemic: Float[Tensor, " N"]
    basis_inputs: Float[Tensor, "N A"]

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, rows: Any) -> Encoded:
        """Return the rows at ``rows``, anything that indexes a tensor."""
        return Encoded(*(getattr(self, f.name)[rows] for f in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Encoded]) -> Encoded:
        """One behind the other."""
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


def joined(parts: Iterable[Encoded]) -> Encoded | None:
    """Join embeddings that come batch by batch, in the memory of all of them once; None for none.

    Small tensors that are freed stay with the process; so batches are joined to large ones first,
    and those are freed one after the other as they are copied.

    Examples
    --------
    >>> x = torch.ones(2, 3)
    >>> joined(Encoded(x, x[:, 0], x[:, 0], x[:, :0]) for _ in range(4)).mean.shape
    torch.Size([8, 3])
    """
    large, small, small_bytes = list[Encoded](), list[Encoded](), 0
    for part in parts:
        small.append(part)
        small_bytes += part.mean.nbytes
        if small_bytes > LARGE_BYTES:
            large.append(Encoded.concatenate(small))
            small, small_bytes = [], 0
    left, start = [*large, *small][::-1], 0
    del large, small
    n = sum(map(len, left))
    if n == 0:
        return None
    whole = Encoded(*(c.new_empty(n, *c.shape[1:]) for c in vars(left[0]).values()))
    while left:
        part = left.pop()
        for column, rows in zip(vars(whole).values(), vars(part).values(), strict=True):
            column[start : start + len(part)] = rows
        start += len(part)
    return whole


def _numbered(first: int, n: int) -> Values:
    return np.arange(first, first + n, dtype=np.int64 if first + n <= LARGEST else np.uint64)


@dataclass(frozen=True)
class Items:
    """N items in the order in which they were added.

    Parameters
    ----------
    encoded : Encoded
    ids : Column [N]
    labels : Column [N] or None
    """

    encoded: Encoded
    ids: Column
    labels: Column | None

    @classmethod
    def of(
        cls,
        encoded: Encoded,
        batch_labels: Sequence[Any],
        labels: Any,
        ids: Any,
        first: int = 0,
        known: Column | None = None,
    ) -> Items:
        """Checked; labels that came with the batches count unless ``labels`` are given.

        Without ids, items are numbered from ``first``. ``known``: labels of the index that they
        are added to.

        Raises
        ------
        InputError
            For ids or labels of another length or type, or ids that stand more than once.
        """
        n = len(encoded)
        labels = joined_labels(batch_labels) if labels is None else labels
        column = Column.of("ids", _numbered(first, n) if ids is None else ids, n)
        if duplicates := column.duplicates():
            raise InputError(f"ids stand more than once, {duplicates[:3]} among them.")
        return cls(encoded, column, None if labels is None else Column.of_labels(labels, n, known))

    def __len__(self) -> int:
        return len(self.encoded)

    @cached_property
    def classes(self) -> Column | None:
        """Their labels [C], sorted, each once; None without labels."""
        return None if self.labels is None else Column(np.unique(self.labels.values))

    @cached_property
    def label_codes(self) -> Int[Tensor, " N"] | None:
        """Place of each label [N] in ``classes``; None without labels."""
        if self.labels is None:
            return None
        return torch.from_numpy(np.unique(self.labels.values, return_inverse=True)[1])

    def take(self, rows: Int[Tensor, " n"]) -> Items:
        """Return the items at ``rows`` [n]."""
        encoded, rows_np = self.encoded.take(rows.to(self.encoded.mean.device)), rows.cpu().numpy()
        labels = None if self.labels is None else self.labels.take(rows_np)
        return Items(encoded, self.ids.take(rows_np), labels)

    def joined(self, new: Items) -> Items:
        """With ``new`` items behind.

        Raises
        ------
        InputError
            For ids that are in the index already, or of another type.
        LabelError
            If only one of the two has labels.
        """
        ids = self.ids.joined("ids", new.ids)
        if ids.duplicates():
            raise InputError(f"ids are in the index already: {ids.duplicates()[:3]} among them.")
        if (self.labels is None) != (new.labels is None):
            passed = "no labels" if new.labels is None else "labels"
            raise LabelError(f"{passed} were given, unlike for the items of the index.")
        labels = None
        if self.labels is not None and new.labels is not None:
            labels = self.labels.joined("labels", new.labels)
        return Items(Encoded.concatenate([self.encoded, new.encoded]), ids, labels)

    def rows_of(self, ids: Any, name: str = "ids") -> Int[Tensor, " n"]:
        """Rows [n] of these ids; ``name`` is what errors call them.

        Raises
        ------
        InputError
            For ids that are not in the index; it names some.
        """
        column = Column.of(name, ids)
        order = np.argsort(self.ids.values)
        codes = self.ids.take(order).codes_of(column.values)
        if (codes < 0).any():
            missing = column.values[codes < 0][:3].tolist()
            told = f"{name} {missing} are not in the index"
            if column.is_text != self.ids.is_text:
                kind, other = ("strings", "numbers")[:: 1 if self.ids.is_text else -1]
                told += f", whose ids are {kind}: pass {kind}, not {other}"
            raise InputError(f"{told}.")
        return torch.from_numpy(order[codes])


def joined_labels(batch_labels: Sequence[Any]) -> Any:
    """Labels of all batches, or None if none had any."""
    if not batch_labels:
        return None
    if isinstance(batch_labels[0], Tensor):
        return torch.cat([labels.cpu() for labels in batch_labels])
    return [name for labels in batch_labels for name in labels]
