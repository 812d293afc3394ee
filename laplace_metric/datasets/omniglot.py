"""Omniglot from two npz files of packed bits: 1,623 characters, 20 drawers each."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from laplace_metric.datasets.image_set import ImageSet
from laplace_metric.datasets.npz import read_npz
from laplace_metric.datasets.request import Request
from laplace_metric.errors import InputError

FILES = {"train": "Omniglot/omniglot_background.npz", "test": "Omniglot/omniglot_evaluation.npz"}
SIDE = 105
DEFAULT = 28
CHUNK = 2_048  # images resized at a time: 90 MB of float32


def read(request: Request) -> ImageSet:
    """One split, uint8 [N, 1, size, size], ink bright on black as in MNIST.

    ``extras`` holds ``"alphabet"`` [N] and ``"drawer"`` [N] (1..20), int64. The labels of both
    splits start at 0, though their characters differ.
    """
    size = DEFAULT if request.size is None else request.size
    if not 1 <= size <= SIDE:
        raise InputError(f"size={size} must lie in 1..{SIDE}, the side of the originals.")
    path = request.file(FILES[request.split], hint="See the data README of the project.")
    table = read_npz(path, "images_packed", "labels", "class_names", "alphabet", "drawer")
    rows = request.rows(len(table["labels"]))
    packed = torch.from_numpy(table["images_packed"])[rows]
    images = torch.cat([_resize(_unpack(part), size) for part in torch.split(packed, CHUNK)])
    extras = {key: torch.from_numpy(table[key]).long()[rows] for key in ("alphabet", "drawer")}
    labels = torch.from_numpy(table["labels"]).long()[rows]
    names = tuple(str(name) for name in table["class_names"])
    return ImageSet(images, labels, request.title, names, extras)


def _unpack(packed: Tensor) -> Tensor:
    """Bits [n, 1379] to ink [n, 1, 105, 105], uint8 in {0, 255}."""
    bits = np.unpackbits(packed.numpy(), axis=1, count=SIDE * SIDE)
    return torch.from_numpy(bits).reshape(-1, 1, SIDE, SIDE) * 255


def _resize(images: Tensor, size: int) -> Tensor:
    """Mean over the area of each new pixel, rounded to uint8."""
    if size == SIDE:
        return images
    return F.adaptive_avg_pool2d(images.float(), size).round().to(torch.uint8)
