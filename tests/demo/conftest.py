"""One small outcome of the demo, shared by the tests of everything that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from laplace_metric.cli.demo import RECIPES
from laplace_metric.cli.demo._data import load_data
from laplace_metric.cli.demo._experiment import Outcome, run_experiment

SMALL = replace(RECIPES["digits"], epochs=2, n_seeds=2, n_train=150, n_queries=60)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks as small as these are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def outcome() -> Outcome:
    return run_experiment(SMALL, load_data(SMALL), seed=3)
