"""SVHN, digits of house numbers, from the authors' files of cropped digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.datasets._matlab import Array, read_mat
from laplace_metric.datasets import ImageSet, Request
from laplace_metric.errors import FileFormatError

FILES = {"train": "SVHN/train_32x32.mat", "test": "SVHN/test_32x32.mat"}


def read_svhn(request: Request) -> ImageSet:
    """One split, uint8 [N, 3, 32, 32]; the label is the digit (in the file, 10 stands for 0)."""
    path = request.file(FILES[request.split])
    table = read_mat(path, "X", "y")
    images, labels = table["X"], table["y"].ravel()
    _check(path, images, labels)
    rows = request.rows(len(labels)).numpy()
    planes = np.ascontiguousarray(images[..., rows].transpose(3, 2, 0, 1))
    digits = labels[rows].astype(np.int64) % 10
    return ImageSet(
        torch.from_numpy(planes), torch.from_numpy(digits), request.title, tuple("0123456789")
    )


def _check(path: Path, images: Array, labels: Array) -> None:
    fits = images.dtype == np.uint8 and images.shape == (32, 32, 3, len(labels))
    if not fits or not np.isin(labels, np.arange(1, 11)).all():
        raise FileFormatError(
            f"{path} is not a file of SVHN: X is {list(images.shape)} of {images.dtype}, y has "
            f"{len(labels)} values. Expected uint8 [32, 32, 3, N] and N labels in 1..10; fetch "
            "it again."
        )
