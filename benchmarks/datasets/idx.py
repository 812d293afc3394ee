"""MNIST and its drop-in relatives, in the idx format of their authors."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.datasets.remotes import Request
from laplace_metric._utils.archives import DAMAGE, check_size
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import FileFormatError

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

# name -> (folder, class names)
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mnist": ("MNIST", DIGITS),
    "fashion-mnist": ("FashionMNIST", CLOTHES),
    "kmnist": ("KMNIST", KUZUSHIJI),
}
MAGIC = b"\x00\x00\x08"
DIMENSIONS = 8
"""Of an idx file at most."""
PREFIX = {"train": "train", "test": "t10k"}


def read_idx(path: str | Path) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped (name ends in ``.gz``) or not.

    The format: two zero bytes, the type code 8, the number of dimensions, each dimension as a
    big-endian int32, then the values (http://yann.lecun.com/exdb/mnist).

    Raises
    ------
    FileFormatError
        If the file is no idx file of bytes, or is shorter or longer than its header says.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two-idx1-ubyte"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    >>> read_idx(path)
    array([7, 9], dtype=uint8)
    """
    content = _content(Path(path))
    if content[:3] == MAGIC and len(content) > 3 and content[3] > DIMENSIONS:
        raise FileFormatError(f"{path} is damaged: it announces {content[3]} dimensions.")
    if len(content) < 4 or content[:3] != MAGIC:
        raise FileFormatError(
            f"{path} is not an idx file of unsigned bytes: it must start with 00 00 08, "
            f"but starts with {content[:3].hex(' ') or 'nothing'}. Fetch it again."
        )
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start].ljust(4 * content[3], b"\xff"), ">u4").tolist())
    expected = int(np.prod(shape, dtype=object))
    if len(content) - start != expected:
        raise FileFormatError(
            f"{path} is damaged: its header announces {expected} values of shape "
            f"{list(shape)}, but {max(len(content) - start, 0)} follow. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path, "rb") as stream:
            head = stream.read(4)
            if head[:3] != MAGIC or len(head) < 4:
                return head
            head += stream.read(4 * head[3])
            sides = [int.from_bytes(head[i : i + 4], "big") for i in range(4, len(head), 4)]
            announced = math.prod(sides)
            check_size(announced, path.stat().st_size)
            return head + stream.read(announced + 1)  # one more shows that there are too many
    except DAMAGE as error:
        raise FileFormatError(
            f"{path} is not a whole gzip file ({error}). Fetch it again, or remove .gz from "
            "its name if it is uncompressed."
        ) from error


def read_mnist_family(request: Request) -> ImageSet:
    """One split of MNIST, FashionMNIST or KMNIST, uint8 [N, 1, 28, 28].

    Raises
    ------
    FileFormatError
        If the two files do not fit, or one is damaged.
    """
    images = read_idx(_find(request, "images-idx3-ubyte"))
    labels = read_idx(_find(request, "labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise FileFormatError(
            f"The files of {request.title} do not fit: images {list(images.shape)}, labels "
            f"{list(labels.shape)}. Expected [N, H, W] and [N]; fetch both again."
        )
    rows = request.rows(len(labels)).numpy()
    return ImageSet(
        torch.from_numpy(images[rows]).unsqueeze(1),
        torch.from_numpy(labels[rows]).long(),
        request.title,
        FAMILIES[request.name][1],
    )


def _find(request: Request, kind: str) -> Path:
    folder = FAMILIES[request.name][0]
    stem = f"{folder}/raw/{PREFIX[request.split]}-{kind}"
    return request.file(stem + ".gz", stem)
