"""Where a method reads an input: at the raw embedding, or at the features that enter the head."""

from __future__ import annotations

from torch import Tensor

from baselines.base.fitted import Sizes
from laplace_metric.errors import UnknownNameError
from laplace_metric.models.heads import HeadActivations

PLACES = ("embedding", "features")


def check_place(on: str) -> None:
    """Raise ``UnknownNameError`` unless ``on`` is one of ``PLACES``."""
    if on not in PLACES:
        raise UnknownNameError("on", on, PLACES)


def vectors(seen: HeadActivations, on: str) -> Tensor:
    """The raw embeddings z [B, Z], or the features h [B, D]."""
    return seen.raw if on == "embedding" else seen.features


def width(sizes: Sizes, on: str) -> int:
    """Z or D."""
    return sizes.embedding if on == "embedding" else sizes.features
