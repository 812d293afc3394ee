"""CIFAR-10 from two npz files, with the human label counts of CIFAR-10H for its test images."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from laplace_metric.datasets.image_set import ImageSet
from laplace_metric.datasets.npz import read_npz
from laplace_metric.datasets.request import Request

FILES = {"train": "CIFAR10/cifar10_train_jpeg.npz", "test": "CIFAR10/cifar10_test.npz"}


def read(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, 32, 32].

    The test split carries ``extras["cifar10h_counts"]`` [N, 10] int64: how many people named
    each class (Peterson et al. 2019). Divided by its row sums it is a label distribution.
    """
    path = request.file(FILES[request.split], hint="See the data README of the project.")
    if request.split == "train":
        table = read_npz(path, "jpeg_bytes", "offsets", "labels", "class_names")
    else:
        table = read_npz(path, "images", "labels", "class_names", "cifar10h_counts")
    rows = request.rows(len(table["labels"])).numpy()
    pixels = _decode(table, rows) if request.split == "train" else table["images"][rows]
    extras: dict[str, Tensor] = {}
    if request.split == "test":
        extras["cifar10h_counts"] = torch.from_numpy(table["cifar10h_counts"][rows]).long()
    return ImageSet(
        torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
        torch.from_numpy(table["labels"][rows]).long(),
        request.title,
        tuple(str(name) for name in table["class_names"]),
        extras,
    )


def _decode(
    table: dict[str, npt.NDArray[np.generic]], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Decode the JPEG strings of `rows`: [n, 32, 32, 3]."""
    content, offsets = table["jpeg_bytes"].tobytes(), table["offsets"].tolist()
    strings = (content[offsets[row] : offsets[row + 1]] for row in rows)
    return np.stack([np.asarray(Image.open(io.BytesIO(s)).convert("RGB")) for s in strings])
