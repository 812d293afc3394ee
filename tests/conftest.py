"""Shared models and data of the tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laplace_metric.calibration import _calibrated
from laplace_metric.calibration.probability._calibrators import fit_calibrator
from laplace_metric.calibration.probability._features import FEATURE_SETS
from laplace_metric.calibration.probability._logistic_score import fit_score
from laplace_metric.calibration.probability._match_probability import MatchProbability

VARIABLE = "LAPLACE_METRIC_DATA"
GIVEN = os.environ.get(VARIABLE)
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
ROOT = Path(__file__).resolve().parents[1]
SLOW = Path(__file__).with_name("slow.txt")
"""Functions of the slow tier: ``python -m tests.tiers`` writes it."""
LONGER = SLOW.with_name("longer.txt")
"""Functions that are in neither the slow nor the quick tier; written by the same command."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="of the files with slow tests, every N-th")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tiers; run the longest first, so that no process is left alone with them.

    The quick tier has the first case of every function in files that have no slow one; functions
    that are too long for it are in ``longer.txt``.
    """
    rank = {name: row for row, name in enumerate(SLOW.read_text().split())}
    seen = set(LONGER.read_text().split())
    slow_files = {name.partition("::")[0] for name in rank}
    for item in items:
        name = function_of(item)
        if name in rank:
            item.add_marker("slow")
        elif name not in seen and name.partition("::")[0] not in slow_files:
            item.add_marker("quick")
        seen.add(name)
    if part := config.getoption("--part"):
        chosen = files_of_part(part, [name.partition("::")[0] for name in rank])
        items[:] = [item for item in items if path_of(item) in chosen]
    first: dict[Path, int] = {}  # the tests of a file stay together: they share its fixtures
    for item in items:
        own = rank.get(function_of(item), len(rank))
        first[item.path] = min(own, first.get(item.path, own))
    items.sort(key=lambda item: first[item.path])


def files_of_part(part: str, files: list[str]) -> set[str]:
    """Every N-th of the files, from the K-th on, for "K/N"; the N parts hold all of them.

    Examples
    --------
    >>> sorted(files_of_part("2/2", ["a", "b", "a", "c", "d"]))
    ['b', 'd']
    """
    first, n = map(int, part.split("/"))
    if not 1 <= first <= n:
        raise pytest.UsageError(f"--part {part}: pass K/N with K from 1 to N.")
    return set(list(dict.fromkeys(files))[first - 1 :: n])


def path_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def function_of(item: pytest.Item) -> str:
    """The path and name of a test without its parameters."""
    return f"{path_of(item)}::{getattr(item, 'originalname', item.name)}"


@pytest.fixture
def real_data() -> Path:
    """The folder of real image sets, if this machine has one."""
    folder = Path(GIVEN) if GIVEN else BESIDE
    if not folder.is_dir():
        pytest.skip(f"no real images: set {VARIABLE} to a folder that holds them")
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations in a tenth of the time: one score is enough, since promises hold for any."""

    def fit(features, match, *, portable=False, like=None):
        x, y = features.values[features.exists], match[features.exists].astype(float)
        groups = features.exists.nonzero()[0]
        weight = 1 / np.bincount(groups)[groups]
        score = fit_score(x, y, weight, FEATURE_SETS["all"])
        calibrator = fit_calibrator("logistic", score(x), y, weight)
        return MatchProbability("all, logistic", score, calibrator, {"all, logistic": (0.5, 0.1)})

    monkeypatch.setattr(_calibrated, "fit_match_probability", fit)


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
