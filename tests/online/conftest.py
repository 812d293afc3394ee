"""Small networks and data for training; no global random state is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def _untouched_global_state():
    """No test may change what others draw."""
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


@pytest.fixture
def make_model() -> Callable[..., nn.Sequential]:
    def make(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            between = [nn.Dropout(dropout)] if dropout else []
            return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *between, nn.Linear(8, 3))

    return make


@pytest.fixture
def points() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(48) % 4
    centres = torch.randn(4, 6, generator=g)
    return centres[labels] + 0.7 * torch.randn(48, 6, generator=g), labels


@pytest.fixture
def batches(points: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    x, y = points
    return [(x[i : i + 16], y[i : i + 16]) for i in range(0, 48, 16)]
