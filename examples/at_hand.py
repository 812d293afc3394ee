"""Data of the notebooks: from the folder that ``LAPLACE_METRIC_DATA`` names, else scikit-learn's.

Without a folder copies of scikit-learn's digits, shifted by a pixel or two, stand for FashionMNIST,
patches of its photographs for KMNIST, and the character names that Python knows for the names of
emoji: a notebook runs, but prints other numbers than are stored in it. Other sets, and drawings of
emoji (which are asked for with a size), raise an error that says what to put where.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks are not installed

from benchmarks import datasets
from benchmarks.datasets import ImageSet
from benchmarks.datasets.remotes import VARIABLE

__all__ = ["captions", "load"]
INSTEAD = {"fashion-mnist": "digits", "kmnist": "photographs"}
SIDE, SHIFTS = 28, 5
NAMES = {
    "Animals & Nature": (0x1F400, 0x1F440),
    "Food & Drink": (0x1F32D, 0x1F380),
    "Objects": (0x1F4A1, 0x1F53E),
    "Smileys & Emotion": (0x1F600, 0x1F645),
    "Travel & Places": (0x1F680, 0x1F6D0),
    "Activities": (0x1F3A0, 0x1F3D0),
    "Flags": (0x1F1E6, 0x1F200),
}
"""Groups of emoji, and the code points that they have in one block."""


def load(name: str, split: str = "train", limit: int | None = None, **options: Any) -> ImageSet:
    """Read an image set as ``benchmarks.datasets.load`` does, or what stands for it."""
    if os.environ.get(VARIABLE) or options or name not in (*INSTEAD, "emoji"):
        return datasets.load(name, split, limit=limit, **options)
    if name == "emoji":
        labels, texts = _names(split)
        nothing = torch.zeros(len(texts), 3, 1, 1, dtype=torch.uint8)
        extras = {"base": torch.arange(len(texts))}
        return ImageSet(nothing, labels, "names of characters", tuple(NAMES), extras)
    print(f"{VARIABLE} is not set: scikit-learn's {INSTEAD[name]} stand for {name}.")
    found = datasets.load(INSTEAD[name], split)
    n = limit or len(found)
    rows, g = torch.arange(n) % len(found), torch.Generator().manual_seed(0)
    large = interpolate(found.pixels(rows), SIDE - SHIFTS + 1)
    images = torch.zeros(n, 1, SIDE, SIDE, dtype=torch.uint8)
    down, right = torch.randint(SHIFTS, (2, n), generator=g)
    for image, pixels, i, j in zip(images, large, down.tolist(), right.tolist(), strict=True):
        image[:, i : i + pixels.shape[1], j : j + pixels.shape[2]] = (255 * pixels).byte()
    return ImageSet(images, found.labels[rows], f"{found.name}, shifted", found.class_names)


def captions(name: str, split: str = "train", **options: Any) -> list[tuple[str, ...]]:
    """Read texts as ``benchmarks.datasets.captions`` does, or what stands for them."""
    if os.environ.get(VARIABLE) or options or name != "emoji":
        return datasets.captions(name, split, **options)
    print(f"{VARIABLE} is not set: names of characters stand for those of emoji.")
    return [(text,) for text in _names(split)[1]]


def _names(split: str) -> tuple[torch.Tensor, list[str]]:
    """Groups and names of one split; three in ten characters are test ones."""
    found = [
        (group, unicodedata.name(chr(point), "").lower())
        for group, ends in enumerate(NAMES.values())
        for point in range(*ends)
        if (point % 10 < 3) == (split == "test")
    ]
    return torch.tensor([g for g, text in found if text]), [text for _, text in found if text]
