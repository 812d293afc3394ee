"""Points of four classes, a network on them, and an index with a calibration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laplace_metric import Index, LaplaceEmbedder

NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture(scope="session")
def points() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 4
    return nn.functional.one_hot(y, 6) + 0.4 * torch.randn(400, 6, generator=g), y


@pytest.fixture(scope="session")
def names(points: Any) -> list[str]:
    return [NAMES[i] for i in points[1]]


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.fixture(scope="session")
def embedder(points: Any) -> LaplaceEmbedder:
    x, y = points
    return LaplaceEmbedder.from_embeddings(x[:100], y[:100])


@pytest.fixture(scope="session")
def index(embedder: LaplaceEmbedder, points: Any, names: list[str]) -> Index:
    x, _ = points
    index = embedder.index(x[100:200], names[100:200], progress=False)
    index.calibrate(x[200:300], names[200:300])
    return index
