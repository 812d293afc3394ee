"""Ids and labels of items: whole numbers or strings, one for each, kept in that type.

What an index knows of its items: embeddings, head inputs, ids and labels, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.search._encoding import Encoded

Values = npt.NDArray[Any]
"""[N] int64, or objects that are strings."""
ODD = "surrogatepass"
"""Names of files that are not UTF-8 hold lone surrogates."""


@dataclass(frozen=True)
class Column:
    """One whole number or one string an item.

    Examples
    --------
    >>> Column.of("labels", ["cat", "dog", "cat"]).codes_of(["dog", "bird"]).tolist()
    [1, -1]
    """

    values: Values

    @classmethod
    def of(cls, name: str, values: Any, length: int | None = None) -> Column:
        """Checked; ``InputError`` unless each entry is a whole number or each a string."""
        array = _array(name, values)
        if length is not None and len(array) != length:
            raise InputError(
                f"{name} has {len(array)} entries for {length} items: pass one for each."
            )
        return cls(array)

    @property
    def words(self) -> bool:
        """Whether the entries are strings."""
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
        """``InputError`` if one has numbers and the other strings."""
        if self.words != other.words:
            kinds = ["strings" if c.words else "numbers" for c in (self, other)]
            raise InputError(f"{name} are {kinds[0]} in the index and {kinds[1]} here.")

    def duplicates(self) -> list[Any]:
        """Entries that stand more than once."""
        unique, counts = np.unique(self.sortable, return_counts=True)
        return unique[counts > 1].tolist()

    def codes_of(self, values: Any) -> npt.NDArray[np.int64]:
        """First position of each value among the sorted unique entries; -1 where it is none."""
        own, asked = np.unique(self.sortable), Column.of("values", values)
        if asked.words != self.words:
            return np.full(len(asked), -1)
        place = np.searchsorted(own, asked.sortable).clip(max=len(own) - 1)
        return np.where(own[place] == asked.sortable, place, -1)

    @property
    def sortable(self) -> Values:
        """The values in a type that NumPy sorts fast."""
        return self.values.astype(str) if self.words else self.values

    def tensors(self, name: str) -> dict[str, Tensor]:
        """As tensors: numbers, or the bytes of all strings and where each ends."""
        if not self.words:
            return {name: torch.from_numpy(self.values)}
        encoded = [value.encode(errors=ODD) for value in self.values]
        ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        text = np.frombuffer(b"".join(encoded), dtype=np.uint8).copy()
        return {f"{name}.text": torch.from_numpy(text), f"{name}.ends": torch.from_numpy(ends)}

    @classmethod
    def from_tensors(cls, name: str, tensors: dict[str, Tensor]) -> Column | None:
        """What ``tensors`` wrote; None if there is nothing of that name."""
        if name in tensors:
            return cls(tensors[name].numpy())
        if f"{name}.text" not in tensors:
            return None
        text = tensors[f"{name}.text"].numpy().tobytes()
        ends = tensors[f"{name}.ends"].tolist()
        starts = [0, *ends[:-1]]
        spans = zip(starts, ends, strict=True)
        return cls(_strings([text[a:b].decode(errors=ODD) for a, b in spans]))


def _array(name: str, values: Any) -> Values:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    array = values if isinstance(values, np.ndarray) else _listed(name, values)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}: pass one entry for each item.")
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "U" or all(isinstance(value, str) for value in array):
        return _strings([str(value) for value in array])
    raise InputError(f"{name} are {array.dtype}: pass whole numbers or strings, one for each item.")


def _listed(name: str, values: Any) -> Values:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name} is a {type(values).__name__}: pass a list or an array.")
    return np.asarray(values) if not _any_strings(values) else _strings(list(values))


def _any_strings(values: Sequence[Any]) -> bool:
    return bool(len(values)) and any(isinstance(value, str) for value in values)


def _strings(values: list[Any]) -> Values:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


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
        cls, encoded: Encoded, found: Sequence[Any], labels: Any, ids: Any, first: int = 0
    ) -> Items:
        """Checked; labels ``found`` in the batches count unless ``labels`` are given.

        Without ids, items are numbered from ``first``.
        """
        n = len(encoded)
        given = _joined(found) if labels is None else labels
        own = Column.of("ids", np.arange(first, first + n) if ids is None else ids, n)
        if own.duplicates():
            raise InputError(f"ids stand more than once, {own.duplicates()[:3]} among them.")
        return cls(encoded, own, None if given is None else Column.of("labels", given, n))

    def __len__(self) -> int:
        return len(self.encoded)

    def take(self, rows: Tensor) -> Items:
        """Those at ``rows`` [n]."""
        at = rows.cpu().numpy()
        labels = None if self.labels is None else self.labels.take(at)
        return Items(
            self.encoded.take(rows.to(self.encoded.mean.device)), self.ids.take(at), labels
        )

    def joined(self, new: Items) -> Items:
        """With ``new`` items behind, whose ids must be new."""
        ids = self.ids.joined("ids", new.ids)
        if ids.duplicates():
            raise InputError(f"ids are in the index already: {ids.duplicates()[:3]} among them.")
        if (self.labels is None) != (new.labels is None):
            given = "no labels" if new.labels is None else "labels"
            raise LabelError(f"{given} were given, unlike for the items of the index.")
        labels = None
        if self.labels is not None and new.labels is not None:
            labels = self.labels.joined("labels", new.labels)
        return Items(Encoded.concatenate([self.encoded, new.encoded]), ids, labels)

    def rows_of(self, ids: Any) -> Tensor:
        """Rows [n] of these ids; ``InputError`` names those that are not here."""
        asked = Column.of("ids", ids)
        order = np.argsort(self.ids.sortable)
        place = self.ids.take(order).codes_of(asked.values)
        if (place < 0).any():
            missing = asked.values[place < 0][:3].tolist()
            raise InputError(f"ids {missing} are not in the index.")
        return torch.from_numpy(order[place])


def _joined(found: Sequence[Any]) -> Any:
    """Labels of all batches, or None if none had any."""
    if not found:
        return None
    if isinstance(found[0], Tensor):
        return torch.cat([labels.cpu() for labels in found])
    return [name for labels in found for name in labels]
