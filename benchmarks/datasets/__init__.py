"""Image sets that only the benchmarks read; `load` knows those of the package too.

The md5 of SVHN are those which torchvision publishes.
"""

from __future__ import annotations

import os

from benchmarks.datasets._cars196 import read_cars196
from benchmarks.datasets._lfw import read_lfw
from benchmarks.datasets._svhn import read_svhn
from laplace_metric import datasets
from laplace_metric.datasets import ImageSet, Reader, Remote

__all__ = ["NAMES", "READERS", "load"]


def _svhn(split: str, md5: str) -> tuple[Remote, ...]:
    name = f"{split}_32x32.mat"
    url = f"http://ufldl.stanford.edu/housenumbers/{name}"
    return (Remote(f"SVHN/{name}", url, f"md5:{md5}"),)


READERS = {
    "svhn": Reader(
        read_svhn,
        {
            "train": _svhn("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            "test": _svhn("test", "eb5a983be6a315427106f1b164d9cef3"),
        },
    ),
    "cars196": Reader(
        read_cars196,
        by_hand="cars_annos.mat and the unpacked car_ims.tgz, in the folder cars196, of "
        "http://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        sized=True,
    ),
    "lfw": Reader(
        read_lfw,
        by_hand="unpack lfw.tgz or lfw-deepfunneled.tgz, and put peopleDevTrain.txt and "
        "peopleDevTest.txt beside it, of http://vis-www.cs.umass.edu/lfw/",
        sized=True,
    ),
}
NAMES = (*datasets.NAMES, *READERS)


def load(
    name: str,
    split: str = "train",
    data: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    *,
    size: int | None = None,
    colour: bool = False,
    download: bool = False,
) -> ImageSet:
    """``laplace_metric.datasets.load`` with Cars196, LFW and SVHN among the names.

    Examples
    --------
    >>> load("digits", "test")
    ImageSet('digits/test', 500 images of 1x8x8, 10 classes)
    """
    return datasets.load(
        name, split, data, limit, size=size, colour=colour, download=download, readers=READERS
    )
