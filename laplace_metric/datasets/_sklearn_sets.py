"""Image sets that come with scikit-learn: no file to fetch, no network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.datasets._remotes import Request
from laplace_metric.errors import InputError

N_DIGITS_TRAIN = 1_297  # of 1,797; the last 500 are the test split
PHOTOGRAPHS = ("china", "flower")
PATCH = 8
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def read_digits(request: Request) -> ImageSet:
    """Hand-written digits, float32 [N, 1, 8, 8]: the first 1,297 train, the last 500 test."""
    bunch = load_digits()
    part = slice(N_DIGITS_TRAIN) if request.split == "train" else slice(N_DIGITS_TRAIN, None)
    images = torch.from_numpy(bunch.images[part]).float().unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target[part]).long()
    rows = request.rows(len(labels))
    return ImageSet(images[rows], labels[rows], request.title, tuple("0123456789"))


def read_photographs(request: Request) -> ImageSet:
    """Patches of two photographs, float32 [N, C, size, size], grey unless `colour`.

    The patches do not overlap; train and test take turns like the fields of a chessboard.
    The label says which photograph. Real images that are no digits: an out-of-distribution set.
    """
    photographs = load_sample_images().images
    patches = [_patches(image, request) for image in photographs]
    labels = torch.arange(len(patches)).repeat_interleave(torch.tensor([len(p) for p in patches]))
    rows = request.rows(len(labels))
    return ImageSet(torch.cat(patches)[rows], labels[rows], request.title, PHOTOGRAPHS)


def _patches(photograph: npt.NDArray[np.uint8], request: Request) -> Tensor:
    """Fields of one colour of the chessboard, [n, C, size, size] in [0, 1]."""
    image = torch.tensor(photograph).permute(2, 0, 1).float() / 255
    if not request.colour:
        image = torch.tensordot(torch.tensor(LUMA), image, dims=1).unsqueeze(0)
    size = PATCH if request.size is None else request.size
    if not 1 <= 2 * size <= min(image.shape[1:]):
        raise InputError(
            f"size={size} must lie in 1..{min(image.shape[1:]) // 2}, half of the photographs' "
            "shorter side."
        )
    columns = F.unfold(image.unsqueeze(0), size, stride=size)[0].T
    across = image.shape[2] // size
    field = torch.arange(len(columns))
    colour_of_field = (field // across + field % across) % 2
    patches = columns[colour_of_field == (request.split == "test")]
    return patches.reshape(-1, image.shape[0], size, size)  # [n, C, size, size]
