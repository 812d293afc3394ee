"""Labeled Faces in the Wild (Huang et al. 2007), from the unpacked archive and people lists."""

from __future__ import annotations

from pathlib import Path

from laplace_metric.datasets import ImageSet, Request, read_listed
from laplace_metric.errors import FileFormatError

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
