"""Omniglot, 1,623 characters by 20 drawers, from the authors' zip files or from packed bits."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from benchmarks.datasets.formats import read_npz
from benchmarks.datasets.remotes import Request
from laplace_metric._utils.archives import DAMAGE, check_zip
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import FileFormatError, InputError

ZIPPED = {"train": "Omniglot/images_background.zip", "test": "Omniglot/images_evaluation.zip"}
PACKED = {"train": "Omniglot/omniglot_background.npz", "test": "Omniglot/omniglot_evaluation.npz"}
DRAWING = re.compile(r"([^/]+)(/[^/]+)/\d+_(\d{1,9})\.png$")  # alphabet, /character, drawer
SIDE = 105
DEFAULT = 28
CHUNK = 2_048  # images resized at a time: 90 MB of float32


def read_omniglot(request: Request) -> ImageSet:
    """One split, uint8 [N, 1, size, size], ink bright on black as in MNIST.

    ``extras`` holds ``"alphabet"`` [N] and ``"drawer"`` [N] (1..20), int64. The labels of both
    splits start at 0, though their characters differ.

    Raises
    ------
    InputError
        If ``request.size`` is not in 1..105.
    """
    size = DEFAULT if request.size is None else request.size
    if not 1 <= size <= SIDE:
        raise InputError(f"size={size} must lie in 1..{SIDE}, the side of the originals.")
    path = request.file(ZIPPED[request.split], PACKED[request.split])
    reader = _read_zip if path.suffix == ".zip" else _read_npz
    return reader(path, request, size)


def _read_npz(path: Path, request: Request, size: int) -> ImageSet:
    table = read_npz(path, "images_packed", "labels", "class_names", "alphabet", "drawer")
    rows = request.rows(len(table["labels"]))
    packed = torch.from_numpy(table["images_packed"])[rows]
    images = torch.cat([_resize(_unpack(part), size) for part in torch.split(packed, CHUNK)])
    extras = {key: torch.from_numpy(table[key]).long()[rows] for key in ("alphabet", "drawer")}
    labels = torch.from_numpy(table["labels"]).long()[rows]
    names = tuple(str(name) for name in table["class_names"])
    return ImageSet(images, labels, request.title, names, extras)


def _read_zip(path: Path, request: Request, size: int) -> ImageSet:
    """The paths in the archive end in ``Alphabet/character01/0709_05.png``, 05 the drawer."""
    try:
        check_zip(path)
        with zipfile.ZipFile(path) as archive:
            files = sorted(name for name in archive.namelist() if DRAWING.search(name))
            rows = request.rows(len(files))
            contents = [archive.read(files[row]) for row in rows.tolist()]
        images = [_resize(_decode(content), size) for content in contents]
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise FileFormatError(
            f"{path} is not a whole zip file of drawings ({error}). Fetch it again."
        ) from error
    if not images:
        raise FileFormatError(f"{path} holds no Alphabet/character/drawing.png. Fetch it again.")
    names, labels, extras = _facts(files)
    extras = {key: value[rows] for key, value in extras.items()}
    return ImageSet(torch.cat(images), labels[rows], request.title, names, extras)


def _facts(files: list[str]) -> tuple[tuple[str, ...], Tensor, dict[str, Tensor]]:
    """Class names, labels and extras, read off the paths of the drawings."""
    alphabet, character, drawer = np.array([DRAWING.findall(name)[0] for name in files]).T
    names, labels = np.unique(np.char.add(alphabet, character), return_inverse=True)
    alphabets = np.unique(alphabet, return_inverse=True)[1]
    extras = {"alphabet": alphabets, "drawer": drawer.astype(np.int64)}
    numbers = {key: torch.from_numpy(value).long() for key, value in extras.items()}
    return tuple(names.tolist()), torch.from_numpy(labels).long(), numbers


def _decode(content: bytes) -> Tensor:
    """PNG, black on white, to ink [1, 1, 105, 105], uint8 in {0, 255}."""
    image = Image.open(io.BytesIO(content))
    if image.size != (SIDE, SIDE):
        raise ValueError(f"a drawing of {image.size[0]} x {image.size[1]} pixels")
    paper = np.asarray(image.convert("L"))
    return torch.from_numpy(255 - paper)[None, None]


def _unpack(packed: Tensor) -> Tensor:
    """Bits [n, 1379] to ink [n, 1, 105, 105], uint8 in {0, 255}."""
    bits = np.unpackbits(packed.numpy(), axis=1, count=SIDE * SIDE)
    return torch.from_numpy(bits).reshape(-1, 1, SIDE, SIDE) * 255


def _resize(images: Tensor, size: int) -> Tensor:
    """Mean over the area of each new pixel, rounded to uint8."""
    if size == SIDE:
        return images
    return F.adaptive_avg_pool2d(images.float(), size).round().to(torch.uint8)
