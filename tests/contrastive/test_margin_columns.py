"""The blocked kernel against a plain comparison of every pair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from laplace_metric.curvature import _margin_pairs
from laplace_metric.curvature._margin_pairs import MarginColumns

quick = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


@pytest.fixture(autouse=True, params=[(4, 3), (7, 16), (1024, 512)], ids=str)
def block(request, monkeypatch):
    """Small blocks too: every position of a class within a block occurs."""
    monkeypatch.setattr(_margin_pairs, "CPU_BLOCK", request.param)


def oracle(f, labels, columns, column_labels, margin):
    """1 for in-margin negatives [n, R], every difference written out."""
    distance = (f[:, None] - columns[None]).square().sum(2).sqrt()
    return ((distance <= margin) & (labels[:, None] != column_labels)).to(f.dtype)


def between(f, columns, rank: float) -> float:
    """A margin well between two of the distances that occur; skips where there is none."""
    scale = torch.cat([f, columns]).abs().max().clamp_min(1e-300)
    distances = ((f[:, None] - columns[None]) / scale).square().sum(2).sqrt()
    values = distances.flatten().unique()
    values = torch.cat([values, 2 * values[-1:] + 1])  # the last: everything is inside
    i = min(int(rank * (len(values) - 1)), len(values) - 2)
    assume(float(values[i + 1] - values[i]) > 1e-5 * float(values[-2].clamp_min(1e-3)))
    return float((values[i] + values[i + 1]) / 2 * scale)


def check(f, labels, columns, directions, column_labels, margin):
    expected = oracle(f, labels, columns, column_labels, margin)
    kernel = MarginColumns(columns, directions, column_labels, margin)
    count, pull = kernel.sums(f, labels)
    assert count.dtype == pull.dtype == torch.float64
    assert torch.equal(count, expected.sum(1).double())
    torch.testing.assert_close(pull, (expected @ directions).double(), rtol=1e-12, atol=1e-12)
    assert torch.equal(kernel.labels, column_labels[kernel.order])
    for part in (slice(0, len(columns)), slice(1, 4)):
        inside = kernel.inside(f, labels, part)
        assert inside.dtype == f.dtype
        assert torch.equal(inside, expected[:, kernel.order[part]])


@st.composite
def labelled(draw):
    """Labels of n rows and R columns: unbalanced, one-member and strange classes, any order."""
    n, r = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    kind = draw(st.sampled_from(["few", "unbalanced", "one each", "one class"]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    if kind == "one each":
        pool = torch.randperm(max(n, r) + 3, generator=g) - 2
        return pool[:n], pool[torch.randperm(len(pool), generator=g)][:r], g
    top = {"few": 3, "unbalanced": 30, "one class": 1}[kind]
    both = torch.randint(top, (n + r,), generator=g)
    if kind == "unbalanced":
        both[torch.rand(n + r, generator=g) < 0.7] = 5
    return both[:n], both[n:] + draw(st.sampled_from([0, 0, 1])), g


@quick
@given(
    labelled(),
    st.integers(1, 6),
    st.sampled_from([1.0, 1e-150, 1e-20, 1e20, 1e150]),
    st.sampled_from([0.0, 1.0, 1e6]),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_raw_sums_and_inside(classes, z, size, away, rank, duplicates, zero_directions):
    labels, column_labels, g = classes
    n, r = len(labels), len(column_labels)
    points = torch.randn(n + r, z, generator=g, dtype=torch.float64) + away
    if duplicates:
        points = points[torch.randint(len(points), (n + r,), generator=g) // 3]
    points = points * size
    f, columns = points[:n], points[n:]
    directions = torch.randn(r, 1, generator=g, dtype=torch.float64)
    directions = torch.zeros_like(directions) if zero_directions else directions
    margin = between(f, columns, rank)
    check(f, labels, columns, directions, column_labels, margin)


@quick
@given(labelled(), st.integers(2, 6), st.floats(0, 1))
def test_sphere_with_the_rows_among_the_columns(classes, z, rank):
    _, labels, g = classes
    u = torch.randn(len(labels), z, generator=g, dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    check(u, labels, u, u, labels, between(u, u, rank))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.25, 1.0, 1024.0])
def test_equality_is_inside_on_a_grid(dtype, step):
    g = torch.Generator().manual_seed(0)
    f = torch.randint(-9, 9, (70, 2), generator=g).to(dtype) * step + 3 * step
    labels = torch.randint(4, (70,), generator=g)
    for margin in (1.0, 2.0, 5.0, 10.0):  # 5: the pairs (3, 4) apart
        check(f, labels, f, f, labels, margin * step)


def test_duplicates_of_another_class_count_and_a_point_itself_does_not():
    f = torch.ones(5, 3, dtype=torch.float64)
    count, pull = MarginColumns(f, f, torch.tensor([1, 0, 1, 2, 1]), 1e-3).sums(
        f[:2], torch.tensor([1, 9])
    )
    assert count.tolist() == [2, 5]
    assert pull.tolist() == [[2] * 3, [5] * 3]


def test_float32_counts_and_memory_layout():
    g = torch.Generator().manual_seed(0)
    f = torch.randn(3001, 8, generator=g).div_(3)
    labels = torch.randint(7, (3001,), generator=g)
    kernel = MarginColumns(f, f, labels, 0.8)
    count, pull = kernel.sums(f[:257], labels[:257])
    expected = oracle(f[:257].double(), labels[:257], f.double(), labels, 0.8)
    assert float((count - expected.sum(1)).abs().max()) <= 1  # one pair within rounding
    torch.testing.assert_close(pull, expected @ f.double(), rtol=1e-5, atol=1e-3)
    assert pull.is_contiguous()
    assert kernel.inside(f[:5], labels[:5], slice(2, 9)).dtype == torch.float32


def test_rows_may_come_in_any_order_and_in_parts():
    g = torch.Generator().manual_seed(1)
    f = torch.randn(90, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(20, (90,), generator=g)
    kernel = MarginColumns(f, f, labels, 1.5)
    count, pull = kernel.sums(f, labels)
    for part in torch.randperm(90, generator=g).split(13):
        some = kernel.sums(f[part], labels[part])
        assert torch.equal(some[0], count[part])
        torch.testing.assert_close(some[1], pull[part], rtol=1e-13, atol=1e-13)


def test_gradients_are_not_followed():
    f = torch.randn(6, 2, requires_grad=True)
    count, pull = MarginColumns(f, f, torch.arange(6), 1.0).sums(f, torch.arange(6))
    assert not count.requires_grad
    assert not pull.requires_grad
