"""Files of plain arrays, never of pickled objects, and photographs as squares of one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import UInt8
from torch import Tensor

from benchmarks.datasets.remotes import Request
from laplace_metric._utils.archives import DAMAGE, check_npy, check_zip
from laplace_metric.datasets import ImageSet
from laplace_metric.datasets._crop import centre_square
from laplace_metric.errors import FileFormatError, InputError

Array = npt.NDArray[Any]


def read_npz(path: Path, *fields: str) -> dict[str, Array]:
    """The named arrays of an npz file.

    Raises
    ------
    FileFormatError
        If the file is no npz archive of plain arrays, or lacks a field.
    """
    try:
        check_zip(path)
        with np.load(path, allow_pickle=False) as archive:
            return {field: archive[field] for field in fields}
    except KeyError as error:
        raise FileFormatError(f"{path} lacks a field: {error.args[0]}.") from error
    except DAMAGE as error:
        raise FileFormatError(f"{path} is not an npz file of arrays ({error}).") from error


def read_npy(path: Path) -> Array:
    """The array of an npy file, mapped.

    Raises
    ------
    FileFormatError
        If it holds no array.
    """
    try:
        check_npy(path)
        return np.lib.format.open_memmap(path, mode="r")
    except DAMAGE as error:
        raise FileFormatError(f"{path} is not an npy file of an array ({error}).") from error


DEFAULT = 224


def read_listed(
    request: Request, listed: Sequence[tuple[Path, int]], class_names: Sequence[str]
) -> ImageSet:
    """The image set of (file, label) pairs; only the rows that the request keeps are decoded.

    Raises
    ------
    InputError
        If ``request.size`` is below 1, or a file is missing.
    FileFormatError
        If a file is damaged or no image.
    """
    size = side_of(request)
    pairs = [listed[row] for row in request.rows(len(listed)).tolist()]
    images = torch.empty(len(pairs), 3, size, size, dtype=torch.uint8)
    for image, (path, _) in zip(images, pairs, strict=True):
        image.copy_(read_square(path, size))
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return ImageSet(images, labels, request.title, tuple(class_names))


def side_of(request: Request, default: int = DEFAULT) -> int:
    """The side that the request asks for.

    Raises
    ------
    InputError
        If it is below 1.
    """
    size = default if request.size is None else request.size
    if size < 1:
        raise InputError(f"size={size} must be at least 1, the side of the images in pixels.")
    return size


def read_square(path: Path, size: int) -> UInt8[Tensor, "3 size size"]:
    """One RGB image.

    The shorter side is resized to `size` (bilinear, averaging over the pixels it merges, aspect
    ratio kept), then the centre is cut out of the longer one. Grey images get three equal planes.

    Raises
    ------
    InputError
        If there is no such file.
    FileFormatError
        If it is damaged or no image.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> path = Path(tempfile.mkdtemp()) / "red.png"
    >>> Image.new("RGB", (30, 20), "red").save(path)
    >>> read_square(path, 4)[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    from PIL import Image  # only here and below: most users read no photographs

    if not path.is_file():
        raise InputError(f"The image {path} is listed but not there. Unpack the archive again.")
    try:
        return decode_square(path, size)
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise FileFormatError(
            f"{path} is not a whole image ({error}). Unpack the archive again."
        ) from error


def decode_square(file: Path | IO[bytes], size: int) -> UInt8[Tensor, "3 size size"]:
    """`read_square` without names for its errors, of a path or an open file."""
    from PIL import Image

    with Image.open(file) as image:
        square = centre_square(image.convert("RGB"), size)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)
