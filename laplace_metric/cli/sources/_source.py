"""``Source``: items on disk with ids and classes, whose inputs are read when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.io import digest
from laplace_metric.models._calling import Inputs

Notify = Callable[[str], None]
"""Gets a line for each guess that a reader makes."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading data; None is guessed from the data, and the user is notified.

    Parameters
    ----------
    size : int or None
        Side of the square that images are scaled to, in pixels; None: as they are.
    channels : 1, 3 or None
        Grey or RGB; None: as the first image is (with a transform, RGB).
    skip_unreadable : bool
        Leave out images that cannot be read; otherwise they are an error.
    text_column, label_column, id_column : str or None
        Of tables; None: ``text``, ``label``, ``id``, where there are such columns.
    image_column : str or None
        Of tables: holds paths of images; None: ``path`` or ``image``, in a table without texts.
    labels : Path or None
        Labels of an .npy file: .npy, or one a line.
    transform : callable or None
        PIL image -> tensor [C, H, W]; replaces ``size``.
    """

    size: int | None = None
    channels: int | None = None
    skip_unreadable: bool = False
    text_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    image_column: str | None = None
    labels: Path | None = None
    transform: Callable[[Any], Any] | None = None


IMAGES, TEXTS, ARRAYS = "images", "texts", "arrays"


@dataclass(frozen=True)
class Source:
    """Items in a fixed order.

    Parameters
    ----------
    path : Path
        Where they are, for messages.
    kind : "images" | "texts" | "arrays"
    ids : tuple of str
        One an item.
    classes : tuple of str or None
        Class of each item.
    read : callable
        Rows (whole numbers) -> inputs of a model: [B, C, H, W], B strings, or [B, D].
    fingerprint : str
        Differs between data sets, whatever their items are called.
    options : dict
        How to read other data in the same way, as fields of ``ReadOptions``.
    hashes : callable or None
        Rows -> sha256 of the file of each; None where an item has no file of its own.
    encode : callable or None
        Items and rows -> what batches hold in place of the inputs themselves.

    Examples
    --------
    >>> read = lambda rows: torch.tensor(rows)[:, None]
    >>> source = Source(Path("x"), ARRAYS, ("a", "b", "c"), ("dog", "cat", "dog"), read, "", {})
    >>> [(x.shape, y) for x, y in source.batches(2)]
    [(torch.Size([2, 1]), tensor([1, 0])), (torch.Size([1, 1]), tensor([1]))]
    """

    path: Path
    kind: str
    ids: tuple[str, ...]
    classes: tuple[str, ...] | None
    read: Callable[[Sequence[int]], Inputs]
    fingerprint: str
    options: dict[str, Any]
    hashes: Callable[[Sequence[int]], list[str]] | None = None
    encode: Callable[[Source, Sequence[int]], Inputs] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Sequence[int]) -> Source:
        """The items at these rows, in that order."""
        classes = None if self.classes is None else tuple(self.classes[row] for row in rows)
        hashes = self.hashes
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            classes=classes,
            read=lambda places: self.read([rows[place] for place in places]),
            fingerprint=digest(f"{self.fingerprint} {list(rows)}"),
            hashes=None if hashes is None else lambda places: hashes([rows[p] for p in places]),
        )

    def encoded(self, rows: Sequence[int]) -> Inputs:
        """Return the inputs of an embedder for the items at these rows."""
        return self.read(rows) if self.encode is None else self.encode(self, rows)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The different classes, sorted."""
        return tuple(sorted(set(self.classes or ())))

    @property
    def labels(self) -> Tensor | None:
        """Classes as places in ``class_names`` [N]; None without classes."""
        if self.classes is None:
            return None
        label = {name: number for number, name in enumerate(self.class_names)}
        return torch.tensor([label[name] for name in self.classes])

    def batches(self, size: int) -> Batches:
        """``(inputs, labels)``; without classes, labels are None."""
        return Batches(self, size, self.labels)

    def inputs(self, size: int) -> Batches:
        """The same with None for labels."""
        return Batches(self, size, None)

    def require_classes(self, needed_for: str, least: int = 1) -> None:
        """Check that items have classes, ``least`` different ones.

        Raises
        ------
        LabelError
            If they have not.
        """
        if self.classes is None:
            raise LabelError(
                f"{self.path} has no labels, which {needed_for} needs: {_HOW[self.kind]}."
            )
        names = self.class_names
        if len(names) < least:
            raise LabelError(
                f"{self.path} holds {len(names)} class ({', '.join(names)}); {needed_for} needs at "
                f"least {least}."
            )


_HOW = {
    IMAGES: "put the images of each class into a folder of its own, DIR/<class>/*.png, or give a "
    "table with the columns path and label",
    TEXTS: "name their column with --label-column",
    ARRAYS: "give --labels FILE, or a file that holds an array 'labels'",
}


@dataclass(frozen=True)
class Batches:
    """A loader that can be read again and knows its length."""

    source: Source
    size: int
    labels: Tensor | None

    def __len__(self) -> int:
        return math.ceil(len(self.source) / self.size)

    @property
    def n_items(self) -> int:
        """Number of items in all batches."""
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor | None]]:
        for start in range(0, len(self.source), self.size):
            rows = range(start, min(start + self.size, len(self.source)))
            labels = None if self.labels is None else self.labels[rows.start : rows.stop]
            yield self.source.encoded(rows), labels


def require_items(path: Path, n: int, what: str) -> None:
    """Check that a source is not empty.

    Raises
    ------
    InputError
        If it is.
    """
    if n == 0:
        raise InputError(f"{path} holds no {what}.")
