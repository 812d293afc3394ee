"""Image sets that come with scikit-learn: no file to fetch, no network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.errors import InputError

N_DIGITS_TRAIN = 1_297  # of 1,797; the last 500 are the test split
PHOTOGRAPHS = ("china", "flower")
PATCH = 8
SPLITS = ("train", "test")
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
NAMES = ("digits", "photographs")


def load(
    name: str,
    split: str = "train",
    limit: int | None = None,
    *,
    size: int | None = None,
    colour: bool = False,
) -> ImageSet:
    """Load an image set of scikit-learn.

    Parameters
    ----------
    name : "digits" | "photographs"
        Hand-written digits, float32 [N, 1, 8, 8]: the first 1,297 train, the last 500 test.
        Patches of two photographs that do not overlap, float32 [N, C, size, size], labelled by
        their photograph; the splits alternate like the fields of a chessboard. They are real
        images that are no digits: an out-of-distribution set.
    split : "train" | "test"
        Part of the set, default "train".
    limit : int or None
        Largest number of images, evenly spaced over the split. None, the default: all.
    size : int or None
        Side of the patches in pixels, for "photographs" only. None, the default: 8.
    colour : bool
        True: three channels instead of grey; for "photographs" only. Default: False.

    Raises
    ------
    UnknownNameError
        If `name` or `split` does not exist.
    InputError
        If an option is out of range or belongs to the other set.

    Examples
    --------
    >>> load("digits", "test")
    ImageSet('digits/test', 500 images of 1x8x8, 10 classes)
    """
    check_name("name", name, NAMES)
    check_name("split", split, SPLITS)
    if limit is not None:
        check_count("limit", limit)
    if size is not None:
        check_count("size", size)
    if name != "photographs" and (size is not None or colour):
        raise InputError(f"size= and colour= apply to 'photographs' only, not to {name!r}.")
    if name == "digits":
        classes, (images, labels) = tuple("0123456789"), _digits(split)
    else:
        classes, (images, labels) = PHOTOGRAPHS, _photographs(split, size or PATCH, colour)
    kept = len(labels) if limit is None else min(limit, len(labels))
    rows = torch.arange(kept) * len(labels) // max(kept, 1)  # sorted sets stay mixed
    return ImageSet(images[rows], labels[rows], f"{name}/{split}", classes)


def _digits(split: str) -> tuple[Tensor, Tensor]:
    bunch = load_digits()
    part = slice(N_DIGITS_TRAIN) if split == "train" else slice(N_DIGITS_TRAIN, None)
    images = torch.from_numpy(bunch.images[part]).float().unsqueeze(1) / 16
    return images, torch.from_numpy(bunch.target[part]).long()


def _photographs(split: str, size: int, colour: bool) -> tuple[Tensor, Tensor]:
    patches = [_patches(image, split, size, colour) for image in load_sample_images().images]
    labels = torch.arange(len(patches)).repeat_interleave(torch.tensor([len(p) for p in patches]))
    return torch.cat(patches), labels


def _patches(photograph: npt.NDArray[np.uint8], split: str, size: int, colour: bool) -> Tensor:
    """Return fields of one colour of the chessboard, [n, C, size, size] in [0, 1]."""
    image = torch.tensor(photograph).permute(2, 0, 1).float() / 255
    if not colour:
        image = torch.tensordot(torch.tensor(LUMA), image, dims=1).unsqueeze(0)
    if 2 * size > min(image.shape[1:]):
        raise InputError(
            f"size={size} must lie in 1..{min(image.shape[1:]) // 2}, half of the photographs' "
            "shorter side."
        )
    columns = F.unfold(image.unsqueeze(0), size, stride=size)[0].T
    across = image.shape[2] // size
    field = torch.arange(len(columns))
    colour_of_field = (field // across + field % across) % 2
    patches = columns[colour_of_field == (split == "test")]
    return patches.reshape(-1, image.shape[0], size, size)  # [n, C, size, size]
