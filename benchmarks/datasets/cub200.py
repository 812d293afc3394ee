"""CUB-200-2011, 200 kinds of birds (Wah et al. 2011): the archive, or 100 classes of it packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.datasets.formats import Array, read_listed, side_of
from benchmarks.datasets.packed import read_packed
from benchmarks.datasets.remotes import Request
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import FileFormatError

FOLDER = "CUB_200_2011"
CLASSES = {"train": range(1, 101), "test": range(101, 201)}
PACKED = "CUB/cub100_jpeg.npz"


def read_cub200(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, size, size] (`read_square`; default size 224).

    The splits are those of zero-shot retrieval: the first 100 classes train, the other 100 test
    (the authors' own ``train_test_split.txt`` is not read). Labels are 0..199 in both, so the
    test split has 100..199.

    Raises
    ------
    FileFormatError
        If the lists of the archive are damaged or do not fit.
    """
    images, names = _table(request, "images.txt"), _table(request, "classes.txt")
    classes = _table(request, "image_class_labels.txt")
    folder = request.file(f"{FOLDER}/images.txt").parent
    if sorted(names) != list(range(1, 201)):
        raise FileFormatError(f"{folder / 'classes.txt'} has not the classes 1..200.")
    labels = {number: _class(folder, value) for number, value in classes.items()}
    if labels.keys() != images.keys():
        raise FileFormatError(
            f"{folder / 'images.txt'} and image_class_labels.txt do not list the same images. "
            "Unpack the archive again."
        )
    chosen = CLASSES[request.split]
    listed = [
        (folder / "images" / path, labels[number] - 1)
        for number, path in sorted(images.items())
        if labels[number] in chosen
    ]
    return read_listed(request, listed, [names[number] for number in sorted(names)])


def _table(request: Request, name: str) -> dict[int, str]:
    """Lines of ``number value``."""
    path = request.file(f"{FOLDER}/{name}")
    try:
        pairs = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return {int(number): value for number, value in pairs}
    except ValueError as error:
        raise FileFormatError(
            f"{path} is not a list of numbered lines ({error}). Unpack the archive again."
        ) from error


def _class(folder: Path, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 200:
        raise FileFormatError(
            f"{folder / 'image_class_labels.txt'} holds the class {value!r}, not one of 1..200. "
            "Unpack the archive again."
        )
    return int(value)


def read_cub(request: Request) -> ImageSet:
    """100 of the 200 classes, uint8 [N, 3, size, size] (`read_square`; default size 224).

    The splits are those of the authors: every class is in both, labels are 0..99.

    Raises
    ------
    FileFormatError
        If the file is damaged, or its fields do not fit.
    """
    size, path = side_of(request), request.file(PACKED)
    packed, table = read_packed(path, "labels", "train", "class_names")
    _check(path, len(packed), table)
    chosen = np.flatnonzero(table["train"] == (request.split == "train"))
    rows = torch.from_numpy(chosen)[request.rows(len(chosen))]
    labels = torch.from_numpy(table["labels"].astype(np.int64))[rows]
    names = tuple(str(name) for name in table["class_names"])
    return ImageSet(packed.squares(rows, size), labels, request.title, names)


def _check(path: Path, n_images: int, table: dict[str, Array]) -> None:
    labels, train, names = (table[key] for key in ("labels", "train", "class_names"))
    fits = labels.shape == train.shape == (n_images,) and names.ndim == 1
    if not fits or labels.dtype.kind not in "iu" or train.dtype != bool or names.dtype.kind != "U":
        raise FileFormatError(
            f"{path} has labels {list(labels.shape)} of {labels.dtype}, train {list(train.shape)} "
            f"of {train.dtype} and class_names {list(names.shape)} of {names.dtype} for "
            f"{n_images} images. Fetch it again."
        )
    if not 0 <= labels.min() <= labels.max() < len(names):
        raise FileFormatError(
            f"{path} has labels {labels.min()}..{labels.max()} for {len(names)} class names. "
            "Fetch it again."
        )
