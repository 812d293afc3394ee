"""Drawings with most of their patches hidden, as features; what is hidden is grey."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.features import Encoding, encoded
from benchmarks.encoders.pretrained import EFFICIENTNET_PACKAGES, EfficientNetLite0
from laplace_metric.datasets import ImageSet

SIDE, PATCH = 96, 12
GREY = 0.5
HIDDEN_IN_TRAINING = 0.75
"""Share of the patches, as in the paper."""


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


def hidden_features(cache: Path, data: str | None, split: str, limit: int | None) -> Tensor:
    """Return features [N, 1280] of the drawings of a split with most patches hidden, in order."""
    options = f"side {SIDE}, patches hidden {HIDDEN_IN_TRAINING:g}"
    key = Encoding("efficientnet-lite0", "emoji", split, limit, EFFICIENTNET_PACKAGES, options)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        images: ImageSet = load("emoji", split, data, limit, size=SIDE)
        for x, y in images.loader(200):
            yield hide(x, HIDDEN_IN_TRAINING, generator), y

    return encoded(key, lambda: EfficientNetLite0(SIDE), batches, cache, progress=False)[0]
