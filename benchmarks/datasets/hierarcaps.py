"""HierarCaps (Alper & Averbuch-Elor 2024): photographs of MS-COCO, each with four captions."""

from __future__ import annotations

from benchmarks.datasets.formats import side_of
from benchmarks.datasets.packed import count_packed, read_packed, read_rows
from benchmarks.datasets.remotes import Request
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import FileFormatError, InputError

IMAGES = "HierarCaps/images_jpeg.npz"
TEXTS = "HierarCaps/captions.json"
LEVELS = 4


def read_hierarcaps(request: Request) -> ImageSet:
    """The test split, uint8 [N, 3, size, size] (`read_square`; default size 224).

    There are no classes: the label is the row in the file, and every image has its own.

    Raises
    ------
    InputError
        If the split is not ``"test"``.
    """
    _check_split(request)
    size = side_of(request)
    packed, _ = read_packed(request.file(IMAGES))
    rows = request.rows(len(packed))
    names = tuple(map(str, range(len(packed))))
    return ImageSet(packed.squares(rows, size), rows, request.title, names)


def hierarcaps_captions(request: Request) -> list[tuple[str, ...]]:
    """Four texts an image, from the general to the specific.

    Raises
    ------
    FileFormatError
        If the file is damaged, or has not one list of four texts an image.
    """
    _check_split(request)
    path, n_images = request.file(TEXTS), count_packed(request.file(IMAGES))
    levels = [tuple(row["levels"]) for row in read_rows(path, n_images, levels=list)]
    for number, texts in enumerate(levels):
        if len(texts) != LEVELS:
            raise FileFormatError(
                f"{path} has {len(texts)} levels in row {number}, not {LEVELS}. Fetch it again."
            )
    return [levels[row] for row in request.rows(n_images).tolist()]


def _check_split(request: Request) -> None:
    if request.split != "test":
        raise InputError(
            f"split={request.split!r}: HierarCaps is a test set, not to be trained on. "
            "Pass split='test'."
        )
