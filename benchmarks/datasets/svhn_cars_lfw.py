"""SVHN, Cars196 and LFW.

SVHN are the authors' cropped digits, with the md5 that torchvision publishes; Cars196 are 196
models of cars (Krause et al. 2013); LFW are Labeled Faces in the Wild (Huang et al. 2007).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.io import loadmat

from benchmarks.datasets.formats import read_listed
from benchmarks.datasets.remotes import Request
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import FileFormatError

Array = npt.NDArray[Any]


def read_mat(path: Path, *fields: str) -> dict[str, Array]:
    """The named variables of a MATLAB file.

    Only whole files are safe to read: bytes changed inside an uncompressed variable can crash
    SciPy's reader, and the process with it. The published files are compressed, with checksums.

    Raises
    ------
    FileFormatError
        If the file is cut short or no MATLAB file, or lacks a variable.

    Examples
    --------
    >>> import tempfile
    >>> from scipy.io import savemat
    >>> path = Path(tempfile.mkdtemp()) / "a.mat"
    >>> savemat(path, {"y": [10, 1]})
    >>> read_mat(path, "y")["y"].tolist()
    [[10, 1]]
    """
    try:
        content = loadmat(path, variable_names=fields)
    except Exception as error:  # damage shows as anything: zlib, struct, type and even name errors
        raise FileFormatError(
            f"{path} is not a whole MATLAB file ({error}). Fetch it again."
        ) from error
    for field in fields:
        if field not in content:
            raise FileFormatError(f"{path} lacks the variable {field!r}. Fetch the original.")
    return {field: np.asarray(content[field]) for field in fields}


FILES = {"train": "SVHN/train_32x32.mat", "test": "SVHN/test_32x32.mat"}


def read_svhn(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, 32, 32]; the label is the digit (in the file, 10 stands for 0)."""
    path = request.file(FILES[request.split])
    table = read_mat(path, "X", "y")
    images, labels = table["X"], table["y"].ravel()
    _check_svhn(path, images, labels)
    rows = request.rows(len(labels)).numpy()
    planes = np.ascontiguousarray(images[..., rows].transpose(3, 2, 0, 1))
    digits = labels[rows].astype(np.int64) % 10
    return ImageSet(
        torch.from_numpy(planes), torch.from_numpy(digits), request.title, tuple("0123456789")
    )


def _check_svhn(path: Path, images: Array, labels: Array) -> None:
    fits = images.dtype == np.uint8 and images.shape == (32, 32, 3, len(labels))
    if not fits or not np.isin(labels, np.arange(1, 11)).all():
        raise FileFormatError(
            f"{path} is not a file of SVHN: X is {list(images.shape)} of {images.dtype}, y has "
            f"{len(labels)} values. Expected uint8 [32, 32, 3, N] and N labels in 1..10; fetch "
            "it again."
        )


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


FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled")  # the first one that is there is read
LISTS = {"train": "peopleDevTrain.txt", "test": "peopleDevTest.txt"}


def read_lfw(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, size, size]; the centre of each image, default 224 of 250.

    The split is by person, that of the authors' lists ``peopleDevTrain.txt`` and
    ``peopleDevTest.txt``, which lie beside the folder of persons or in it. Persons with one
    image are kept. The labels of both splits start at 0, though their persons differ.
    """
    name = LISTS[request.split]
    people = _people(request.file(name, *(f"{folder}/{name}" for folder in FOLDERS)))
    folder = request.directory(*FOLDERS)
    listed = [
        (folder / person / f"{person}_{number:04d}.jpg", label)
        for label, (person, count) in enumerate(people.items())
        for number in range(1, count + 1)
    ]
    return read_listed(request, listed, list(people))


def _people(path: Path) -> dict[str, int]:
    """Persons and their numbers of images: the number of persons, then ``name<TAB>count``."""
    try:
        first, *lines = path.read_text(encoding="utf-8").split("\n")
        pairs = [line.split("\t") for line in lines if line.strip()]
        people = {name: int(count) for name, count in pairs}
        announced = int(first)
    except ValueError as error:
        raise FileFormatError(
            f"{path} is not a list of persons ({error}): the first line is their number, each "
            "other a name, a tab and a count. Fetch it again."
        ) from error
    if len(people) != announced:
        raise FileFormatError(
            f"{path} announces {announced} persons and lists {len(people)}. Fetch it again."
        )
    return people
