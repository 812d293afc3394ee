"""Cars196, 196 models of cars (Krause et al. 2013), from ``cars_annos.mat`` and ``car_ims``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.datasets._matlab import Array, read_mat
from laplace_metric.datasets import ImageSet, Request, read_listed
from laplace_metric.errors import FileFormatError

ANNOTATIONS = "cars196/cars_annos.mat"
CLASSES = {"train": range(1, 99), "test": range(99, 197)}


def read_cars196(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, size, size]; the centre of each image, default size 224.

    The splits are those of zero-shot retrieval: the first 98 classes train, the other 98 test
    (the authors' own field ``test`` is not read). Labels are 0..195 in both, so the test split
    has 98..195. The later layout, ``devkit`` with ``cars_train`` and ``cars_test``, is not read.

    Raises
    ------
    FileFormatError
        If the annotations are damaged, or not those of the authors.
    """
    path = request.file(ANNOTATIONS)
    table = read_mat(path, "annotations", "class_names")
    names = [str(_scalar(path, name)) for name in table["class_names"].ravel()]
    if len(names) != 196:
        raise FileFormatError(f"{path} names {len(names)} classes, not 196. Fetch it again.")
    chosen = CLASSES[request.split]
    pairs = _pairs(path, table["annotations"].ravel())
    listed = [(file, number - 1) for file, number in pairs if number in chosen]
    return read_listed(request, listed, names)


def _pairs(path: Path, annotations: Array) -> list[tuple[Path, int]]:
    """File and class (1..196) of every image."""
    if not {"relative_im_path", "class"} <= set(annotations.dtype.names or ()):
        raise FileFormatError(
            f"{path} has annotations without relative_im_path and class. Fetch the original."
        )
    files = [str(_scalar(path, value)) for value in annotations["relative_im_path"]]
    numbers = [_scalar(path, value) for value in annotations["class"]]
    if not np.isin(numbers, np.arange(1, 197)).all():
        raise FileFormatError(f"{path} holds classes other than 1..196. Fetch it again.")
    pairs = zip(files, numbers, strict=True)
    return [(path.parent / file, int(number)) for file, number in pairs]


def _scalar(path: Path, value: Array) -> str | int:
    """A cell of a MATLAB structure is an array of one value."""
    if np.size(value) != 1:
        raise FileFormatError(f"{path} holds {value!r} where one value belongs. Fetch it again.")
    return np.asarray(value).item()
