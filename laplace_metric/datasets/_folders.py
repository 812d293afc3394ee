"""Images on disk with names of classes, read when they are needed.

They lie in folders, one a class, or a table lists their paths.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.tables import TABLES, read_columns, shown_columns
from laplace_metric._utils.validation import as_path, check_count, check_function
from laplace_metric.datasets._image_files import images_below
from laplace_metric.datasets._image_set import Pixels, named_rows, row_loader
from laplace_metric.errors import InputError, LabelError

_LOG = logging.getLogger(__name__)


def top_folders(folder: Path, ids: Sequence[str]) -> list[str] | None:
    """The folder right below the root that each image lies in; None where none does.

    Raises
    ------
    InputError
        If some images lie in such folders and some next to them.

    Examples
    --------
    >>> top_folders(Path("photos"), ["cat/1.jpg", "cat/2024/2.jpg", "dog/1.jpg"])
    ['cat', 'cat', 'dog']
    """
    outside = [name for name in ids if "/" not in name]
    if not outside:
        return [name.split("/", 1)[0] for name in ids]
    if len(outside) < len(ids):
        within = next(name for name in ids if "/" in name)
        raise InputError(
            f"{folder} holds images in class folders ({within}) and next to them ({outside[0]}): "
            "move them all into class folders, or none."
        )
    return None


def labels_by(label_of: Callable[[str], Any], ids: Sequence[str]) -> list[str]:
    """Apply a user's function to each path.

    Raises
    ------
    LabelError
        If it fails, or gives anything but a name.
    """
    labels = []
    for name in ids:
        try:
            label = label_of(name)
        except Exception as error:
            raise LabelError(f"label_of({name!r}) fails: {error!r}.") from error
        if not isinstance(label, str) or not label:
            raise LabelError(f"label_of({name!r}) is {label!r:.60}: return the name of a class.")
        labels.append(label)
    return labels


def check_listed(table: Path, names: list[str]) -> list[str]:
    """The paths of a table, if each is a file, as seen from its folder, and stands once.

    Raises
    ------
    InputError
        If not; the message names the row.
    """
    if not names:
        raise InputError(f"{table} holds no row.")
    for row, name in enumerate(names, 1):
        if not name or not (table.parent / name).is_file():
            raise InputError(
                f"{table}, row {row}: {table.parent / name} is no file. Paths are as seen from "
                "the folder of the table."
            )
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{table} names {twice} twice. Leave one of the rows out.")
    return names


def column_of(
    table: Path, header: Collection[str], option: str, named: str | None, usual: Sequence[str]
) -> str | None:
    """The column that an option names; else the first one that has a usual name.

    Raises
    ------
    InputError
        If there is no column of that name.
    """
    if named is not None and named not in header:
        raise InputError(
            f"{option}={named!r}: {table} has no such column; its columns: {shown_columns(header)}."
        )
    return named or next((name for name in usual if name in header), None)


class ImageFolder(Dataset[Any]):
    """Images on disk, in a fixed order; `load_folder` makes one.

    A data set of PyTorch of items ``(image [C, H, W], name of its class)``, of images alone where
    there are no classes. ``fit``, ``index``, ``calibrate``, ``search`` and ``evaluate`` take it as
    it is, and read it batch by batch.

    Parameters
    ----------
    name : str
    ids : names [N]
        Paths as seen from the folder.
    labels : names of classes [N], or None
    reader : Pixels
        How files become tensors.

    Attributes
    ----------
    ids : array [N] of str
    labels : array [N] of str, or None

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
        """Images of some rows (default: all) as the model gets them, [n, C, H, W].

        Parameters
        ----------
        rows : whole numbers [n], a slice, or a mask [N]

        Raises
        ------
        InputError
            If one cannot be read, or two are of different sizes; the message names up to five.
        """
        names = self.ids[named_rows("rows", rows, len(self)).numpy()].tolist()
        if not names:
            raise InputError("rows names no image: pass at least one.")
        return self.reader.batch(names)

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Items of a batch, which a ``DataLoader`` asks for; its files are read side by side."""
        images = self.pixels(rows)
        if self.labels is None:
            return list(images)
        return list(zip(images, self.labels[list(rows)].tolist(), strict=True))

    def subset(self, indices: Any) -> ImageFolder:
        """The images at ``indices``, in that order.

        Parameters
        ----------
        indices : whole numbers [n], a slice, or a mask [N]

        Raises
        ------
        InputError
            For a mask of another length, and rows that do not exist.
        """
        rows = named_rows("indices", indices, len(self)).numpy()
        labels = None if self.labels is None else self.labels[rows].tolist()
        return ImageFolder(self.name, self.ids[rows].tolist(), labels, self.reader)

    def split(self, share: float, generator: Seed = 0) -> tuple[ImageFolder, ImageFolder]:
        """Two parts in their order, of which the second has about this share of each class.

        Every class of two images or more is in both. Copies of one photograph, and frames of one
        video, should not be: put them into parts by `subset`.

        Parameters
        ----------
        share : float
            Above 0 and below 1.
        generator : torch.Generator, seed or None

        Raises
        ------
        InputError
            For a share out of range, or so few images that a part would be empty.

        Examples
        --------
        >>> ten = ImageFolder("ten", list("abcdefghij"), ["x"] * 5 + ["y"] * 5, Pixels(None, 1, 3))
        >>> [part.labels.tolist() for part in ten.split(0.4)]
        [['x', 'x', 'x', 'y', 'y', 'y'], ['x', 'x', 'y', 'y']]
        """
        if not isinstance(share, (int, float)) or not 0 < share < 1:
            raise InputError(f"share={share!r}: pass a number above 0 and below 1.")
        source, second = as_generator(generator), np.zeros(len(self), dtype=bool)
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
        generator: Seed = None,
        workers: int = 0,
        *,
        numbers: bool = False,
    ) -> DataLoader[Any]:
        """Batches ``(images [b, C, H, W], names of classes)``, of images alone without classes.

        The files of a batch are read by several threads. The last batch may be smaller. With
        ``shuffle`` the order is drawn anew each pass, from ``generator`` (or its seed) unless it
        is None.

        Parameters
        ----------
        batch_size : int
        shuffle : bool
        generator : torch.Generator, seed or None
        workers : int
            Processes that read ahead, see ``torch.utils.data.DataLoader``.
        numbers : bool
            Classes as `numbers`, of all of these images: for ``train_embedder`` and its losses.

        Raises
        ------
        InputError
            For a batch size below 1, or workers below 0.
        LabelError
            For ``numbers`` without classes.
        """
        labels = self.numbers if numbers else None
        return row_loader(
            len(self),
            partial(self._batch, numbers=labels),
            batch_size,
            shuffle=shuffle,
            generator=generator,
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
        """Ids of the images that cannot be read; all of them are decoded to find out."""
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
        (chosen,) = named_rows("row", [int(row)], len(self)).tolist()
        picture = self.images.reader.decoded(str(self.images.ids[chosen])).convert("RGB")
        picture.thumbnail((self.side, self.side))
        return np.array(picture)


PATHS = ("path", "image")
"""Columns that may hold the paths of images."""
LABEL = "label"


def load_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    crop: bool = True,
    channels: int = 3,
    transform: Callable[[Any], Tensor] | None = None,
    label_of: Callable[[str], str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    skip_unreadable: bool = False,
) -> ImageFolder:
    """A folder of images, one folder a class, or a table that lists images; read when needed.

    Parameters
    ----------
    path : path
        ``photos`` with ``photos/<class>/*.jpg``, however deep, or without classes
        ``photos/*.jpg``; or a .csv or .tsv of paths as seen from its own folder. Files are images
        by their content, whatever their ending; hidden ones are left out, links are followed.
    size : int or None
        Side of the square images in pixels. None: as they are, and then all of one size.
    crop : bool
        True, as in `load`: the shorter side is scaled to ``size``, then the centre cut out. False,
        as ``laplace-metric --size`` does: the image is scaled to the square.
    channels : {3, 1}
        RGB or grey. Transparent images are put on white.
    transform : callable or None
        PIL image -> tensor [C, H, W]: the preprocessing that a model comes with, or a
        `CentreCrop`; instead of ``size``.
    label_of : callable or None
        Path as seen from the folder -> name of its class. None: the first folder of it, or the
        column of the table.
    path_column, label_column : str or None
        Of a table. None: ``path`` or ``image``; ``label``, if there is one.
    skip_unreadable : bool
        Read every image once, and leave out those that cannot be (the log names them).

    Returns
    -------
    ImageFolder
        Images turned upright as the camera noted (Exif), classes by name, ids by path.

    Raises
    ------
    InputError
        If there is no such path or no image, or images stand both in class folders and next to
        them; for options out of range. An image that cannot be read is told when it is read.
    LabelError
        If ``label_of`` gives no name, or a label of the table is empty.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> photos = Path(tempfile.mkdtemp()) / "photos"
    >>> for name, colour in (("cherry", "red"), ("lime", "green")):
    ...     (photos / name).mkdir(parents=True)
    ...     Image.new("RGB", (30, 20), colour).save(photos / name / "1.JPG")
    >>> folder = load_folder(photos, size=8)
    >>> folder
    ImageFolder('photos', 2 images, 2 classes)
    >>> folder.ids.tolist(), folder.labels.tolist(), folder.pixels().shape
    (['cherry/1.JPG', 'lime/1.JPG'], ['cherry', 'lime'], torch.Size([2, 3, 8, 8]))
    """
    place = as_path("path", path)
    if size is not None:
        check_count("size", size)
    if channels not in (1, 3) or isinstance(channels, bool):
        raise InputError(f"channels={channels!r}: pass 3 for RGB or 1 for grey.")
    if transform is not None and size is not None:
        raise InputError(f"size={size} and a transform: pass one of the two.")
    if transform is not None:
        check_function("transform", transform, "PIL image")
    if label_of is not None:
        check_function("label_of", label_of, "path")
    if place.is_dir():
        if path_column is not None or label_column is not None:
            raise InputError(
                f"{place} is a folder: path_column and label_column are of a table (.csv, .tsv)."
            )
        folder, (ids, others) = place, images_below(place)
        if others:
            _LOG.info("%s: %d files that are no images are left out", place, len(others))
        labels = top_folders(place, ids) if label_of is None else None
    else:
        folder, (ids, labels) = place.parent, _listed(place, path_column, label_column)
    if label_of is not None:
        labels = labels_by(label_of, ids)
    reader = Pixels(folder, size, channels, transform, crop)
    whole = ImageFolder(place.name or str(place), ids, labels, reader)
    damaged = whole.unreadable() if skip_unreadable else ()
    if not damaged:
        return whole
    if len(damaged) == len(whole):
        reader.decoded(ids[0])  # which says why
    _LOG.warning("left out of %r: %s", whole.name, ", ".join(damaged))
    return whole.subset([name not in damaged for name in whole.ids.tolist()])


def _listed(
    table: Path, path_column: str | None, label_column: str | None
) -> tuple[list[str], list[str] | None]:
    """Paths and labels of a table."""
    if not table.exists():
        raise InputError(f"path={str(table)!r} does not exist: pass a folder, or a .csv of paths.")
    if table.suffix.lower() not in TABLES:
        raise InputError(f"path={str(table)!r} is no folder: pass one, or a .csv or .tsv of paths.")
    columns = read_columns(table)
    paths = column_of(table, columns, "path_column", path_column, PATHS)
    label = column_of(table, columns, "label_column", label_column, (LABEL,))
    if paths is None:
        raise InputError(
            f"{table} has no column {' or '.join(map(repr, PATHS))}: name the one that holds the "
            f"paths with path_column; its columns: {shown_columns(columns)}."
        )
    ids = check_listed(table, columns[paths])
    if label is None:
        return ids, None
    labels = columns[label]
    if "" in labels:
        number = labels.index("") + 1
        raise LabelError(f"{table}: row {number} has an empty label. Fill it in, or leave it out.")
    return ids, labels
