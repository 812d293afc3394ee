"""Shared models and data of the tests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(60, 5, generator=g), torch.arange(60) % 3


@pytest.fixture
def loader(data: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    x, y = data
    return [(x[i : i + 25], y[i : i + 25]) for i in range(0, 60, 25)]
