"""Corrupted images: the types of CIFAR-10-C (Hendrycks and Dietterich 2019) at five severities.

The corruptions are those of the package imagecorruptions, and so are their strengths: they were
chosen for ImageNet-C, for photographs of 224 pixels. The published files of CIFAR-10-C were made
with weaker ones, for 32 pixels: Gaussian noise there has a standard deviation of 0.04, 0.06,
0.08, 0.09 and 0.10, here of 0.08, 0.12, 0.18, 0.26 and 0.38. So a severity here is mostly harder
than the severity of that number in CIFAR-10-C, and results on the two cannot be compared level by
level. Beyond strength, elastic_transform lacks the random affine map of CIFAR-10-C, frost is cut
out of photographs that were not shrunk to a fifth first, and motion_blur, which snow uses too, is
computed another way.

The mean change of the pixels grows with the severity of the noises, but not of every type: on
CIFAR-10 that of glass_blur, frost and saturate falls from some level to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from laplace_metric.errors import InputError, MissingPackageError, UnknownNameError

TYPES = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
    "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate",
    "jpeg_compression", "speckle_noise", "gaussian_blur", "spatter", "saturate",
)  # fmt: skip
"""The fifteen types that are reported, then the four for validation."""
SEVERITIES = (1, 2, 3, 4, 5)
SEEDED = ("impulse_noise", "glass_blur")  # take a seed; the others draw from numpy's global state
SIDE = 32

Pixels = npt.NDArray[np.uint8]


def corrupted(images: Tensor, kind: str, severity: int, seed: int, *, start: int = 0) -> Tensor:
    """Corrupt images, each with its own draw.

    Parameters
    ----------
    images : Tensor [N, 3, 32, 32]
        uint8, or floating point in [0, 1], which is first rounded to the 256 levels of uint8.
    kind : str
        One of `TYPES`.
    severity : int
        One of `SEVERITIES`, or 0, which returns the images as they are.
    seed : int
        0 or more. The draw for an image depends on the seed and the image's number alone: not
        on the type, the severity or the other images. numpy's global random state is restored.
    start : int
        Number of the first image, to corrupt a set in batches.

    Returns
    -------
    Tensor [N, 3, 32, 32]
        Of the dtype and on the device of `images`. An image that no drop of spatter hits
        (severity 1, about one in fifty) is unchanged; the package would make it black.

    Raises
    ------
    UnknownNameError
        If `kind` is not known.
    InputError
        If the severity is not one of 0..5, the images have another shape, dtype or range, or
        `seed` or `start` is negative.
    MissingPackageError
        If the extra ``laplace-metric[benchmarks]`` is not installed.

    Examples
    --------
    >>> grey = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupted(grey, "brightness", 1, seed=0)[0, :, 0, 0]
    tensor([153, 153, 153], dtype=torch.uint8)
    >>> noisy = corrupted(grey, "gaussian_noise", 3, seed=0)
    >>> torch.equal(noisy[1:], corrupted(grey[1:], "gaussian_noise", 3, seed=0, start=1))
    True
    """
    _check(images, kind, severity, {"seed": seed, "start": start})
    if severity == 0:
        return images
    levels = images if images.dtype == torch.uint8 else (images.float() * 255).round().byte()
    pixels = np.ascontiguousarray(levels.permute(0, 2, 3, 1).cpu().numpy())
    results, corrupt = np.empty_like(pixels), _library()
    state = np.random.get_state()  # noqa: NPY002
    try:
        for row, image in enumerate(pixels):
            # 32 bits, the most that numba and numpy's global state take
            draw = int(np.random.SeedSequence((seed, start + row)).generate_state(1)[0])
            results[row] = _one(corrupt, image, kind, severity, draw)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    planes = torch.from_numpy(results).permute(0, 3, 1, 2).contiguous().to(images.device)
    return planes if images.dtype == torch.uint8 else planes.to(images.dtype) / 255


def _one(
    corrupt: Callable[..., Pixels], image: Pixels, kind: str, severity: int, draw: int
) -> Pixels:
    np.random.seed(draw)  # noqa: NPY002 - the package draws from the global state
    seeded = {"seed": draw} if kind in SEEDED else {}
    if kind != "spatter":
        return corrupt(image, severity, kind, **seeded)
    try:
        with np.errstate(invalid="raise"):  # 0 / 0 where no drop fell
            return corrupt(image, severity, kind)
    except FloatingPointError:
        return image


def _library() -> Callable[..., Any]:
    try:
        return import_module("imagecorruptions").corrupt
    except ImportError as error:
        install = "pip install 'laplace-metric[benchmarks]'"
        raise MissingPackageError("imagecorruptions", "corrupted", install) from error


def _check(images: Tensor, kind: str, severity: int, numbers: dict[str, int]) -> None:
    if kind not in TYPES:
        raise UnknownNameError("kind", kind, TYPES)
    if severity not in (0, *SEVERITIES):
        raise InputError(f"severity={severity!r} must be one of 0, 1, 2, 3, 4, 5.")
    for name, number in numbers.items():
        if number < 0:
            raise InputError(f"{name}={number} must be at least 0.")
    floating = images.is_floating_point()
    if images.shape[1:] != (3, SIDE, SIDE) or not (floating or images.dtype == torch.uint8):
        raise InputError(
            f"images must be [N, 3, {SIDE}, {SIDE}] of dtype uint8 or floating point, not "
            f"{list(images.shape)} of {images.dtype}."
        )
    if floating and not bool(((images >= 0) & (images <= 1)).all()):
        raise InputError("images of floating point must lie in [0, 1]; these do not.")


SMALLEST = 0.25


def kept_shares(n: int, seed: int = 0) -> Tensor:
    """Side of each crop over the side of its image [n], from Unif(0.25, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return SMALLEST + (1 - SMALLEST) * torch.rand(n, generator=generator)


def cropped(images: Tensor, kept: Tensor, seed: int = 1) -> Tensor:
    """A random square of each image [N, C, H, W], resized to it; ``kept`` [N]: share of the side.

    Examples
    --------
    >>> cropped(torch.ones(5, 1, 8, 8), kept_shares(5)).shape
    torch.Size([5, 1, 8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    # coordinates of affine_grid: [-1, 1] is the whole image
    centre = (2 * torch.rand(len(images), 2, generator=generator) - 1) * (1 - kept)[:, None]
    matrices = torch.zeros(len(images), 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = kept
    matrices[:, :, 2] = centre
    grid = F.affine_grid(matrices.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False).clamp(0, 1)
