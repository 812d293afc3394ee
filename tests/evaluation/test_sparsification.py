"""Sparsification and abstention against loops, with ties averaged over every order."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.evaluation import abstention, sparsification


def loop_curve(uncertainty, correct, kept_counts):
    """Mean of the first n for every order that sorts the uncertainty, averaged over orders."""
    uncertainty, correct = np.array(uncertainty, float), np.array(correct, float)
    orders = [
        p for p in permutations(range(len(correct))) if (np.diff(uncertainty[list(p)]) >= 0).all()
    ]
    return np.array([np.mean([correct[list(p[:n])].mean() for p in orders]) for n in kept_counts])


small = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 2), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=n, max_size=n),
    )
)


@settings(max_examples=60, deadline=None)
@given(small)
def test_curves_are_expectations_over_random_orders(case):
    uncertainty, correct = case
    q = len(correct)
    result = sparsification(uncertainty, correct)
    counts = [q - (i * q) // 100 for i in range(100)]
    np.testing.assert_allclose(result.curve, loop_curve(uncertainty, correct, counts))
    np.testing.assert_allclose(result.oracle, loop_curve(-np.array(correct), correct, counts))
    np.testing.assert_allclose(result.random, np.mean(correct))
    counts = [int(np.ceil(q * p / 20)) for p in range(20, 0, -1)]
    answered = abstention(uncertainty, correct)
    np.testing.assert_allclose(answered.recall, loop_curve(uncertainty, correct, counts))


def test_oracle_order_has_no_gap_and_beats_random():
    correct = torch.tensor([1.0, 0, 1, 1, 0, 1, 0, 1, 1, 1]).repeat(30)
    best = sparsification(-correct, correct)
    assert best.ause == 0.0
    worst = sparsification(correct, correct)
    blind = sparsification(torch.zeros(300), correct)
    assert worst.ausc < blind.ausc < best.ausc
    assert blind.ausc == pytest.approx(blind.ausc_random) == pytest.approx(0.7)
    assert worst.ause == pytest.approx(best.ausc - worst.ausc)


def test_abstention_hand_computed():
    """Of 20 queries the least certain is wrong, and so is the most certain."""
    correct = torch.ones(20)
    correct[[0, 19]] = 0
    answered = abstention(torch.arange(20.0), correct)
    assert answered.coverage.tolist() == pytest.approx([p / 20 for p in range(20, 0, -1)])
    assert answered.recall[:2].tolist() == pytest.approx([18 / 20, 18 / 19])
    assert answered.recall[-1] == 0.0
    assert answered.monotonicity == pytest.approx(1 / 19)
    heights = [18 / 20, *((n - 1) / n for n in range(19, 0, -1))]
    area = sum((a + b) / 2 for a, b in pairwise(heights)) / 19
    assert answered.area == pytest.approx(area)
