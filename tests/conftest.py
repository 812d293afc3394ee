"""Shared models and data of the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

VARIABLE = "LAPLACE_METRIC_DATA"
GIVEN = os.environ.get(VARIABLE)
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
LONGEST = ("test_examples.py", "test_smoke.py", "test_vision.py", "test_photographs_page.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: of several processes none is left alone with them at the end."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def real_data() -> Path:
    """The folder of real image sets, if this machine has one."""
    folder = Path(GIVEN) if GIVEN else BESIDE
    if not folder.is_dir():
        pytest.skip(f"no real images: set {VARIABLE} to a folder that holds them")
    return folder


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
