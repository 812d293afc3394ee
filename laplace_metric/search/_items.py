"""``Items``: the gallery, row by row: embeddings, ids and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._columns import LARGEST, Column, Values
from laplace_metric.inputs._labels import joined_labels
from laplace_metric.search._encoded import Encoded


def _numbered(first: int, n: int) -> Values:
    return np.arange(first, first + n, dtype=np.int64 if first + n <= LARGEST else np.uint64)


@dataclass(frozen=True)
class Items:
    """N items in the order in which they were added.

    Parameters
    ----------
    encoded : Encoded
        Embeddings of the items, with their uncertainty.
    ids : Column [N]
        Name of each item, each once.
    labels : Column [N] or None
        Class of each item; None if the items have none.
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
        """Return checked items; ``labels`` count before those that came with the batches.

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
            raise InputError(
                f"ids stand more than once, {duplicates[:3]} among them: pass a name of its own "
                "for each item. What items have in common goes into labels=, or groups=."
            )
        return cls(encoded, column, None if labels is None else Column.of_labels(labels, n, known))

    def __len__(self) -> int:
        return len(self.encoded)

    @cached_property
    def classes(self) -> Column | None:
        """Labels of the items [C], sorted, each once; None without labels."""
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
        """Return these items with ``new`` ones behind.

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
            what = ": pass one for each new item" if new.labels is None else ""
            raise LabelError(f"{passed} were given, unlike for the items of the index{what}.")
        labels = None
        if self.labels is not None and new.labels is not None:
            labels = self.labels.joined("labels", new.labels)
        return Items(Encoded.concatenate([self.encoded, new.encoded]), ids, labels)

    def rows_of(self, ids: Any, name: str = "ids") -> Int[Tensor, " n"]:
        """Return the rows [n] of these ids; ``name`` is their name in errors.

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
            else:
                some = repr(self.ids.values[0:1].tolist()[0])
                told += f": pass some of its {len(self.ids):,} ids, index.ids, such as {some:.40}"
            raise InputError(f"{told}.")
        return torch.from_numpy(order[codes])
