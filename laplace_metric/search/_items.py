"""Items of an index, row by row: embeddings, ids and labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.search._columns import LARGEST, Column, Values

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
        cls, encoded: Encoded, batch_labels: Sequence[Any], labels: Any, ids: Any, first: int = 0
    ) -> Items:
        """Checked; labels that came with the batches count unless ``labels`` are given.

        Without ids, items are numbered from ``first``.

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
        return cls(encoded, column, None if labels is None else Column.of_labels(labels, n))

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
            raise InputError(f"{name} {missing} are not in the index.")
        return torch.from_numpy(order[codes])


def joined_labels(batch_labels: Sequence[Any]) -> Any:
    """Labels of all batches, or None if none had any."""
    if not batch_labels:
        return None
    if isinstance(batch_labels[0], Tensor):
        return torch.cat([labels.cpu() for labels in batch_labels])
    return [name for labels in batch_labels for name in labels]
