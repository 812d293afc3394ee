"""Drawings of which less and less can be seen: patches hidden, blurred, cropped; as features.

Five levels each, 0 the drawing as it is. What is hidden is grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from benchmarks.datasets import load
from benchmarks.encoders.features import Encoding, encoded
from benchmarks.encoders.pretrained import EFFICIENTNET_PACKAGES, EfficientNetLite0
from laplace_metric.datasets import ImageSet

SIDE, PATCH = 96, 12
GREY = 0.5
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Of the 64 patches that are hidden."""
SIGMAS = (0.0, 1.5, 3.0, 6.0, 12.0)
"""Of a Gaussian blur, in pixels."""
SIDES = (1.0, 0.8, 0.6, 0.4, 0.2)
"""Of the square about the centre that is left, shown at the full size."""
HIDDEN_IN_TRAINING = 0.75
"""Share of the patches, as in the paper."""

Degradation = Callable[[Tensor, float, torch.Generator], Tensor]
"""Images [B, 3, H, W] in [0, 1], a level, randomness -> images."""


def hide(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A random share of the patches of each image grey.

    Examples
    --------
    >>> half = hide(torch.ones(1, 3, 24, 24), 0.5, torch.Generator().manual_seed(0))
    >>> float((half == GREY).double().mean())
    0.5
    """
    b, _, rows, columns = (n // (PATCH if k > 1 else 1) for k, n in enumerate(images.shape))
    order = torch.rand(b, rows * columns, generator=generator).argsort(1).argsort(1)
    hidden = (order < round(share * rows * columns)).reshape(b, 1, rows, columns)
    mask = hidden.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
    return images.masked_fill(mask, GREY)


def blur(images: Tensor, sigma: float, _: torch.Generator) -> Tensor:
    """Gaussian, with the border repeated."""
    if not sigma:
        return images
    reach = min(math.ceil(3 * sigma), images.shape[-1] - 1)
    x = torch.arange(-reach, reach + 1, dtype=images.dtype)
    kernel = (-x.square() / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, -1)
    padded = pad(images, [reach] * 4, mode="replicate")
    down = conv2d(padded, kernel[..., None], groups=images.shape[1])
    return conv2d(down, kernel[:, :, None], groups=images.shape[1])


def crop(images: Tensor, share: float, _: torch.Generator) -> Tensor:
    """The square about the centre, with that share of the side, at the full size."""
    side = images.shape[-1]
    kept = round(share * side)
    start = (side - kept) // 2
    part = images[..., start : start + kept, start : start + kept]
    return interpolate(part, [side, side], mode="bilinear", antialias=True)


LEVELS: dict[str, tuple[Degradation, tuple[float, ...]]] = {
    "patches hidden": (hide, SHARES),
    "blurred": (blur, SIGMAS),
    "cropped": (crop, SIDES),
}


def degraded_features(
    cache: Path, data: str | None, split: str, limit: int | None, name: str, level: float
) -> Tensor:
    """Features [N, 1280] of the drawings of a split, in their order."""
    how, options = LEVELS[name][0], f"side {SIDE}, {name} {level:g}"
    key = Encoding("efficientnet-lite0", "emoji", split, limit, EFFICIENTNET_PACKAGES, options)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        images: ImageSet = load("emoji", split, data, limit, size=SIDE)
        for x, y in images.loader(200):
            yield how(x, level, generator), y

    return encoded(key, lambda: EfficientNetLite0(SIDE), batches, cache, progress=False)[0]
