"""Items on disk in one form, whatever they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from laplace_metric.datasets._chosen_rows import row_loader
from laplace_metric.errors import LabelError
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.io import digest

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
        Columns of a table; None: ``text``, ``label`` and ``id``, if there are such columns.
    image_column : str or None
        Column of a table with paths of images; None: ``path`` or ``image``, in a table without
        texts.
    labels : Path or None
        Labels of a file of arrays: .npy, or one a line.
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
Batches = DataLoader[Any]
"""``(inputs, labels)`` in order, read as often as they are asked for."""


_HOW = {
    IMAGES: "put the images of each class into a folder of its own, DIR/<class>/*.png, or give a "
    "table with the columns path and label",
    TEXTS: "name their column with --label-column",
    ARRAYS: "give --labels FILE, or a file that holds an array 'labels'",
}


@dataclass(frozen=True)
class Source:
    """Items in a fixed order.

    Parameters
    ----------
    path : Path
        Place of the items, for messages.
    kind : "images" | "texts" | "arrays"
        Kind of the items.
    ids : tuple of str
        Name of each item.
    classes : tuple of str or None
        Class of each item.
    read : callable
        Function of rows (whole numbers) that returns inputs of a model: [B, C, H, W], B strings, or
        [B, D].
    fingerprint : str
        Fingerprint that differs between data sets, whatever the names of their items are.
    options : dict
        Fields of ``ReadOptions`` by which other data are read in the same way.

    Examples
    --------
    >>> read = lambda rows: torch.tensor(rows)[:, None]
    >>> source = Source(Path("x"), ARRAYS, ("a", "b", "c"), ("dog", "cat", "dog"), read, "", {})
    >>> [(x.shape, y) for x, y in source.batches(2, labelled=True)]
    [(torch.Size([2, 1]), tensor([1, 0])), (torch.Size([1, 1]), tensor([1]))]
    """

    path: Path
    kind: str
    ids: tuple[str, ...]
    classes: tuple[str, ...] | None
    read: Callable[[Sequence[int]], ModelInput]
    fingerprint: str
    options: dict[str, Any]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Sequence[int]) -> Source:
        """Return the items at these rows, in that order."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            classes=self.classes and tuple(self.classes[row] for row in rows),
            read=lambda places: self.read([rows[place] for place in places]),
            fingerprint=digest(f"{self.fingerprint} {list(rows)}"),
        )

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

    def batches(self, size: int, *, labelled: bool = False) -> Batches:
        """Return batches ``(inputs, labels)``; labels are None without classes or ``labelled``."""
        labels = self.labels if labelled else None

        def read(rows: list[int]) -> tuple[ModelInput, Tensor | None]:
            return self.read(rows), None if labels is None else labels[rows]

        return row_loader(len(self), read, size)

    def texts(self) -> dict[str, Any]:
        """Return the text of each id, for texts."""
        return dict(zip(self.ids, self.read(range(len(self))), strict=True))

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


def given_texts(texts: Sequence[str], path: Path = Path("--text")) -> Source:
    """Return texts that are queries themselves; each is also its id.

    Examples
    --------
    >>> given_texts(["a cat"]).read([0])
    ['a cat']
    """
    content = digest(json.dumps(list(texts)))
    return Source(
        path, TEXTS, tuple(texts), None, lambda rows: [texts[row] for row in rows], content, {}
    )
