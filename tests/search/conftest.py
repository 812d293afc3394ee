"""Clustered embeddings, an embedder over them, and an index of each kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laplace_metric import LaplaceEmbedder

CLASSES, SIZE = 12, 6


@pytest.fixture(scope="module")
def points() -> tuple[Tensor, Tensor]:
    """[600, 6] about 12 centres, and their classes."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(600) % CLASSES
    centres = 2 * torch.randn(CLASSES, SIZE, generator=g)
    return centres[y] + 1.2 * torch.randn(600, SIZE, generator=g), y


@pytest.fixture(scope="module")
def embedder(points: tuple[Tensor, Tensor]) -> LaplaceEmbedder:
    x, y = points
    return LaplaceEmbedder.from_embeddings(
        x[:200], y[:200], prior_precision=20.0, distance="arccos"
    )
