"""The order of the fit rows, batches and blocks change near, far and ambiguity by rounding only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.familiarity._row_sample import RowSample, equal_directions, row_weights
from laplace_metric.models._feature_store import FeatureStore
from tests.blocks import of_rows

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Of the largest number."""


def answers(h, y, queries, batch, dtype):
    """near, far, local, epistemic and ambiguity of queries, [Q] each."""
    store = FeatureStore()
    for part, labels in zip(h.split(batch), y.split(batch), strict=True):
        store.append(part, labels, where="h")
    fitted = NearFar.of(store.blocks(), store.classes, len(store), dtype)
    if fitted is None:
        return None
    found = [*fitted.parts(queries), fitted.ambiguity(queries)]
    return [column for column in found if column is not None]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("scored", "rows_of_a_block"), [(2_500, 64), (2_500, 7), (25, 16)])
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(6, 60),
    width=st.integers(2, 6),
    n_classes=st.integers(1, 60),
    copies=st.integers(1, 4),
    zeros=st.integers(0, 2),
    seed=st.integers(0, 2**20),
    batches=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_no_order_and_no_batch_size_changes_an_answer(
    dtype, scored, rows_of_a_block, n, width, n_classes, copies, zeros, seed, batches
):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=g)  # many classes: some of one member
    h = torch.randn(n_classes, width, generator=g, dtype=dtype)[y]
    h = 1 + h + 0.3 * torch.randn(n, width, generator=g, dtype=dtype)
    if n_classes > 3:
        h, y = h.repeat(copies, 1), torch.cat([y, y.repeat(copies - 1) % 3])
    else:
        h, y = h.repeat(copies, 1), y.repeat(copies)  # equal rows of one class
    h[:zeros] = 0
    queries = 1 + torch.randn(9, width, generator=g, dtype=dtype)
    order = torch.randperm(len(h), generator=g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("laplace_metric.familiarity._fit_set.SAMPLED", scored)
        one = answers(h, y, queries, batches[0], dtype)
        place = "laplace_metric.models._feature_store.blocks"
        patch.setattr(place, of_rows(rows_of_a_block))
        other = answers(h[order], y[order], queries, batches[1], dtype)
    assert (one is None) == (other is None)
    for a, b in zip(one or [], other or [], strict=True):
        assert (a - b).abs().max() <= ROUNDING[dtype] * a.abs().max().clamp_min(1)


def distinct(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(n, 5, generator=g, dtype=torch.float64))


def sampled(u, labels, size, batch):
    sample, counted = RowSample.empty(size, u), u.norm(dim=1) > 0
    for part, of, all_ in zip(
        u.split(batch), labels.split(batch), counted.split(batch), strict=True
    ):
        sample.add_(part, part.new_zeros(len(part)), of, all_)
    rows = sample.rows()
    return rows.u, rows.labels


@pytest.mark.parametrize("batch", [1, 7, 400])
def test_the_sample_is_of_the_smallest_keys(batch):
    u, labels = distinct(400), torch.arange(400) % 7
    keys = 2**16 * (u @ row_weights(5)) + (5**0.5 - 1) / 2 * labels
    smallest = keys.remainder(1).argsort()[:50]
    zeros, none = torch.zeros(60, 5).double(), torch.zeros(60).long()  # key 0, but not counted
    held, of = sampled(torch.cat([zeros, u]), torch.cat([none, labels]), 50, batch)
    assert torch.equal(held, u[smallest])
    assert torch.equal(of, labels[smallest])


def test_equal_directions_of_other_lengths_are_other_rows():
    u, y = distinct(3).repeat(2, 1), torch.zeros(6).long()
    lengths = torch.arange(6).double() / 7
    for order in (slice(None), torch.arange(6).flip(0)):
        sample = RowSample.empty(6, u)
        sample.add_(u[order], lengths[order], y, torch.ones(6).bool())
        assert sample.rows()[1].sort().values.tolist() == lengths.tolist()


@pytest.mark.parametrize("size", [30, 45, 600])
def test_rows_that_recur_keep_their_share(size):
    u, g = distinct(30), torch.Generator().manual_seed(0)
    index = torch.arange(30).repeat_interleave(torch.arange(30) + 1)  # 1 to 30 copies, 465 in all
    index = index[torch.randperm(465, generator=g)]
    held, labels = sampled(u[index], index, size, 11)
    assert len(held) == min(size, 465)
    assert torch.equal(held, u[labels])
    share = labels.bincount(minlength=30) * 465 / len(held)
    rounding = 465 / size if size < 465 else 1e-9
    assert ((share - torch.arange(30) - 1).abs() <= rounding).all()


def test_equal_directions_have_one_number_and_their_copies_are_counted_by_class():
    u = distinct(53)
    assert len(equal_directions(u).unique()) == 53
    numbers = equal_directions(torch.cat([u, u.flip(0)]))
    assert torch.equal(numbers[:53], numbers[53:].flip(0))
    assert numbers.unique(return_counts=True)[1].tolist() == 53 * [2]
    rows, y = u[:3].repeat(4, 1), torch.tensor(6 * [0] + 3 * [1] + 3 * [0])
    sample = RowSample.empty(20, rows)
    sample.add_(rows, torch.arange(12).double() / 7, y, torch.ones(12).bool())
    found = sample.rows()
    assert len(found.equal.unique()) == 3
    for label, copies in zip(found.labels.tolist(), found.copies.tolist(), strict=True):
        assert copies == (1 if label else 3)


@pytest.mark.parametrize("ones", [1, 3, 12])
def test_rows_of_zeros_and_ones_stay_distinct(ones):
    """Weights of 16 bits, summed over rows of 3 * 4^k ones, differ by whole numbers of keys."""
    g = torch.Generator().manual_seed(0)
    rows = torch.rand(200, 40, generator=g).topk(ones).indices
    u = torch.zeros(200, 40).double().scatter_(1, rows, 1).unique(dim=0)
    u = torch.nn.functional.normalize(u)
    held, _ = sampled(u, torch.zeros(len(u)).long(), 200, 50)
    assert torch.equal(held.unique(dim=0), u.unique(dim=0))


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(6, 40),
    width=st.integers(2, 8),
    n_classes=st.integers(2, 5),
    rare=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**20),
)
def test_classes_of_one_or_two_distinct_rows_have_a_factor_or_none(n, width, n_classes, rare, seed):
    """Of such a fold's rest the scatter is the rounding of float32 alone."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=g)
    pairs = torch.randn(n_classes, 2, width, generator=g)
    h = pairs[y, (torch.rand(n, generator=g) < rare).long()]
    found = answers(h, y, torch.randn(3, width, generator=g), 16, torch.float32)
    assert all(column.isfinite().all() for column in found or [])
