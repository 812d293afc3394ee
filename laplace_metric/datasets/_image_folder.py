"""Images on disk with names of classes, read when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import shown_argument
from laplace_metric.datasets._chosen_rows import chosen_rows, row_loader
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError, LabelError


class ImageFolder(Dataset[Any]):
    """Images on disk, in a fixed order; `load_folder` makes one.

    A data set of PyTorch of items ``(image [C, H, W], name of its class)``, of images alone where
    there are no classes. ``fit``, ``index``, ``calibrate``, ``search`` and ``evaluate`` take it as
    it is, and read it batch by batch.

    Parameters
    ----------
    name : str
        Name of the set, for its repr and the log.
    ids : names [N]
        Paths as seen from the folder.
    labels : names of classes [N], or None
        Class of each image; None for images without classes.
    reader : Pixels
        Reads the files as tensors.

    Attributes
    ----------
    ids : array [N] of str
        Paths as seen from the folder.
    labels : array [N] of str, or None
        Class of each image; None for images without classes.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> photos = Path(tempfile.mkdtemp())
    >>> for shade in (0, 51):
    ...     Image.new("RGB", (2, 2), (shade, 0, 0)).save(photos / f"{shade}.png")
    >>> reader = Pixels(photos, None, 3)
    >>> two = ImageFolder("two", ["0.png", "51.png"], ["black", "brown"], reader)
    >>> [(tuple(x.shape), y) for x, y in two.loader(batch_size=8)]
    [((2, 3, 2, 2), ['black', 'brown'])]
    >>> two.subset(two.labels == "brown").pixels()[:, 0, 0, 0]
    tensor([0.2000])
    """

    def __init__(
        self, name: str, ids: Sequence[str], labels: Sequence[str] | None, reader: Pixels
    ) -> None:
        self.name, self.reader = name, reader
        self.ids: npt.NDArray[np.str_] = np.array(ids, dtype=np.str_)
        self.labels: npt.NDArray[np.str_] | None = None
        if labels is not None:
            self.labels = np.array(labels, dtype=np.str_)
            if len(self.labels) != len(self.ids):
                raise LabelError(f"labels has {len(labels)} entries for {len(ids)} images.")

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        classes = "without classes" if self.labels is None else f"{len(self.class_names)} classes"
        return f"ImageFolder({self.name!r}, {len(self):,} images, {classes})"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The different classes, sorted; none without classes."""
        return () if self.labels is None else tuple(np.unique(self.labels).tolist())

    @property
    def numbers(self) -> Int64[Tensor, " N"]:
        """Classes as places in ``class_names``; ``LabelError`` without classes."""
        if self.labels is None:
            raise LabelError(
                f"{self!r}: put the images of each class into a folder of its own, or load it with "
                "label_of."
            )
        return torch.from_numpy(np.unique(self.labels, return_inverse=True)[1]).long()

    def pixels(self, rows: Any = slice(None)) -> Shaped[Tensor, "rows ..."]:
        """Return the images of some rows as the model gets them, [n, C, H, W].

        Parameters
        ----------
        rows : whole numbers [n], a slice, or a mask [N]
            Images to read; negative numbers count from the end. Default: all.

        Raises
        ------
        InputError
            If one cannot be read, or two are of different sizes; the message names up to five.
        """
        names = self.ids[chosen_rows("rows", rows, len(self)).numpy()].tolist()
        if not names:
            raise InputError("rows names no image: pass at least one.")
        return self.reader.batch(names)

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Return items of a batch, as a ``DataLoader`` asks for; files are read side by side."""
        images = self.pixels(rows)
        if self.labels is None:
            return list(images)
        return list(zip(images, self.labels[list(rows)].tolist(), strict=True))

    def subset(self, indices: Any) -> ImageFolder:
        """Return the images at ``indices``, in that order.

        Parameters
        ----------
        indices : whole numbers [n], a slice, or a mask [N]
            Images to keep; negative numbers count from the end.

        Raises
        ------
        InputError
            If a mask has another length, or a row does not exist.
        """
        rows = chosen_rows("indices", indices, len(self)).numpy()
        labels = None if self.labels is None else self.labels[rows].tolist()
        return ImageFolder(self.name, self.ids[rows].tolist(), labels, self.reader)

    def split(self, share: float, seed: Seed = 0) -> tuple[ImageFolder, ImageFolder]:
        """Return two parts in their order, of which the second has about this share of each class.

        Every class of two images or more is in both. Copies of one photograph, and frames of one
        video, should not be: put them into parts by `subset`.

        Parameters
        ----------
        share : float
            Share of the second part, above 0 and below 1.
        seed : torch.Generator, int or None
            Source of the random order within each class; None draws a new one, 0 is the default.

        Raises
        ------
        InputError
            If share is out of range, or there are so few images that a part would be empty.

        Examples
        --------
        >>> ten = ImageFolder("ten", list("abcdefghij"), ["x"] * 5 + ["y"] * 5, Pixels(None, 1, 3))
        >>> [part.labels.tolist() for part in ten.split(0.4)]
        [['x', 'x', 'x', 'y', 'y', 'y'], ['x', 'x', 'y', 'y']]
        """
        if not isinstance(share, (int, float)) or not 0 < share < 1:
            raise InputError(
                f"{shown_argument('share', share)}: pass a number above 0 and below 1."
            )
        source, second = as_generator(seed), np.zeros(len(self), dtype=bool)
        classes = np.zeros(len(self)) if self.labels is None else self.labels
        for name in np.unique(classes):
            rows = np.flatnonzero(classes == name)
            order = torch.randperm(len(rows), generator=source).numpy()
            most = max(len(rows) - 1, 0)
            second[rows[order[: min(max(round(share * len(rows)), 1), most)]]] = True
        if not second.any():
            raise InputError(f"{self!r} has one image a class: a split needs two of some class.")
        return self.subset(~second), self.subset(second)

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: Seed = None,
        workers: int = 0,
        *,
        numbers: bool = False,
    ) -> DataLoader[Any]:
        """Return batches ``(images [b, C, H, W], names of classes)``; images alone without classes.

        The files of a batch are read by several threads. The last batch may be smaller. With
        ``shuffle`` the order is drawn anew each pass, from ``seed`` (or its seed) unless it
        is None.

        Parameters
        ----------
        batch_size : int
            Images of a batch.
        shuffle : bool
            True draws a new order in each pass; False, the default, keeps that of ``ids``.
        seed : torch.Generator, int or None
            Source of the orders; None, the default, draws a new one.
        workers : int
            Processes that read ahead, see ``torch.utils.data.DataLoader``; 0, the default: none.
        numbers : bool
            True yields classes as `numbers`, of all of these images: for ``train_embedder`` and
            its losses. False, the default, yields their names.

        Raises
        ------
        InputError
            If the batch size is below 1, or workers below 0.
        LabelError
            If ``numbers`` is true and the images have no classes.
        """
        labels = self.numbers if numbers else None
        return row_loader(
            len(self),
            partial(self._batch, numbers=labels),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            workers=workers,
        )

    def _batch(self, rows: list[int], numbers: Tensor | None) -> Any:
        pixels = self.pixels(rows)
        if numbers is not None:
            return pixels, numbers[rows]
        return pixels if self.labels is None else (pixels, self.labels[rows].tolist())

    @cached_property
    def thumbnails(self) -> Thumbnails:
        """Small pictures to look at, whatever the transform: ``found.figure(new.thumbnails, ...)``.

        A sequence of arrays [H, W, 3], uint8; each is read when it is asked for.
        """
        return Thumbnails(self)

    def unreadable(self) -> tuple[str, ...]:
        """Return ids of the images that cannot be read; all of them are decoded to find out."""
        names = self.ids.tolist()
        checked = zip(names, self.reader.unreadable(names), strict=True)
        return tuple(name for name, damaged in checked if damaged)


@dataclass(frozen=True)
class Thumbnails(Sequence[Any]):
    """The images of a folder as small pictures, read one by one."""

    images: ImageFolder
    side: int = 160

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[place] for place in range(len(self))[row]]
        (chosen,) = chosen_rows("row", [int(row)], len(self)).tolist()
        picture = self.images.reader.decoded(str(self.images.ids[chosen])).convert("RGB")
        picture.thumbnail((self.side, self.side))
        return np.array(picture)
