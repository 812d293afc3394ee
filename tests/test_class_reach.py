"""The reach of a class, against loops over points."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from laplace_metric.laplace import _class_reach
from laplace_metric.laplace._class_reach import class_reach
from laplace_metric.models._feature_store import FeatureStore


def by_loops(z: Tensor, y: Tensor, rows: list[int], *, spherical: bool) -> float:
    if spherical:
        z = nn.functional.normalize(z, dim=1)
    nearest, squares = [], 0.0
    classes = {int(y[i]) for i in rows}
    for c in classes:
        own = torch.stack([z[i] for i in rows if y[i] == c])
        squares += float((own - own.mean(0)).square().sum())
    within = squares / (len(rows) - len(classes))
    for i in rows:
        apart = [float((z[i] - z[j]).square().sum()) for j in range(len(z)) if y[j] == y[i]]
        nearest.append(min(d for d in apart if d > 1e-8 * within))
    return (sum(nearest) / len(nearest) * within**2) ** (1 / 3)


def reach_of(z: Tensor, y: Tensor, rows: Tensor, *, spherical: bool = False) -> float:
    store = FeatureStore.of(z, y)
    return class_reach(lambda h: h, z[rows], y[rows], store.blocks(), spherical=spherical)


@settings(deadline=None)
@given(
    n_classes=st.integers(1, 4),
    members=st.integers(2, 7),
    width=st.integers(2, 5),
    compared=st.integers(2, 7),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    spherical=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_reach_is_that_of_loops(n_classes, members, width, compared, scale, spherical, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n_classes * members) % n_classes
    z = scale * torch.randn(len(y), width, generator=g, dtype=torch.float64)
    rows = torch.arange(min(compared, members) * n_classes)
    found = reach_of(z, y, rows, spherical=spherical)
    assert found == pytest.approx(by_loops(z, y, rows.tolist(), spherical=spherical), rel=1e-9)


@pytest.fixture
def points() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(60, 4, generator=g, dtype=torch.float64), torch.arange(60) % 3


def test_copies_are_no_neighbours(points):
    """Each point twice, exactly and up to rounding."""
    z, y = points
    rows = torch.arange(30)
    once = reach_of(z, y, rows)
    rounded = z * (1 + 1e-7 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1)))
    for copy in (z, rounded):
        assert reach_of(torch.cat([z, copy]), y.repeat(2), rows) == pytest.approx(once, rel=1e-6)


def test_more_points_come_nearer(points):
    z, y = points
    rows = torch.arange(9)
    assert reach_of(z, y, rows) < 0.95 * reach_of(z[:9], y[:9], rows)


def test_what_all_points_share_changes_nothing(points):
    z, y = points
    rows = torch.arange(30)
    assert reach_of(z + 1e5, y, rows) == pytest.approx(reach_of(z, y, rows), rel=1e-6)


def test_it_is_a_squared_length_and_of_directions_none(points):
    z, y = points
    rows = torch.arange(30)
    assert reach_of(3 * z, y, rows) == pytest.approx(9 * reach_of(z, y, rows))
    apart = reach_of(z, y, rows, spherical=True)
    assert reach_of(z * (1 + y[:, None]), y, rows, spherical=True) == pytest.approx(apart)


def test_points_are_read_in_parts(points, monkeypatch):
    z, y = points
    rows = torch.arange(30)
    whole = reach_of(z, y, rows)
    monkeypatch.setattr(_class_reach, "LARGE_BYTES", 7 * 8 * (2 * 30 + 4))
    assert reach_of(z, y, rows) == pytest.approx(whole, rel=1e-12)


def test_classes_that_are_points_have_no_reach():
    z = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0], [2.0, 0.0]])
    assert reach_of(z, torch.tensor([0, 0, 1, 1]), torch.arange(4)) == 0.0
