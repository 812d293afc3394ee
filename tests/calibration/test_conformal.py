"""Ranks among held-out scores: every order of a few, and many draws."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.calibration._conformal import conformal_quantile, p_values
from laplace_metric.errors import InputError

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(SCORES, SCORES)
def test_p_values_are_a_count(held_out, scores):
    found = p_values(torch.tensor(held_out), torch.tensor(scores))
    wanted = [(1 + sum(h <= s for h in held_out)) / (len(held_out) + 1) for s in scores]
    assert found.tolist() == pytest.approx(wanted)


@settings(max_examples=80, deadline=None)
@given(SCORES, st.integers(1, 99))
def test_the_lowest_typical_score_is_an_order_statistic(held_out, percent):
    k = math.floor(Fraction(percent, 100) * (len(held_out) + 1))
    wanted = -math.inf if k == 0 else sorted(held_out)[k - 1]
    assert conformal_quantile(torch.tensor(held_out), percent / 100) == wanted


@settings(max_examples=80, deadline=None)
@given(SCORES.filter(lambda s: len(s) > 1 and len(s) < 8), st.integers(1, 99))
def test_with_ties_the_promises_hold_for_whoever_is_new(scores, percent):
    """Each of the scores may be the new one, equally likely: exact over all of them."""
    alpha, n = percent / 100, len(scores)
    alarms = covered = 0
    for i in range(n):
        held_out = torch.tensor(scores[:i] + scores[i + 1 :])
        alarms += p_values(held_out, torch.tensor([scores[i]])).item() <= alpha + 1e-12
        covered += scores[i] >= conformal_quantile(held_out, alpha)
    assert alarms / n <= alpha + 1e-12
    assert covered / n >= 1 - alpha - 1e-12


@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.9])
def test_over_every_order_coverage_is_within_its_bounds(n, alpha):
    orders = list(permutations(range(n + 1)))
    alarms = covered = 0
    for *held_out, new in orders:
        held = torch.tensor(held_out, dtype=torch.float64)
        alarms += p_values(held, torch.tensor([new]).double()).item() <= alpha + 1e-12
        covered += new >= conformal_quantile(held, alpha)
    k = math.floor(alpha * (n + 1) + 1e-9)
    assert alarms / len(orders) == pytest.approx(k / (n + 1))
    coverage = covered / len(orders)
    assert 1 - alpha - 1e-9 <= coverage <= 1 - alpha + 1 / (n + 1) + 1e-9
    assert coverage == pytest.approx(1 - k / (n + 1))


@pytest.mark.parametrize("alpha", [0.05, 0.23])
def test_over_many_draws_coverage_is_within_its_bounds(alpha):
    g, n, runs = torch.Generator().manual_seed(0), 37, 4000
    draws = torch.randn(runs, n + 1, generator=g, dtype=torch.float64)
    alarms = [p_values(row[:n], row[n:]).item() <= alpha for row in draws]
    covered = [float(row[n]) >= conformal_quantile(row[:n], alpha) for row in draws]
    slack = 3 * (alpha * (1 - alpha) / runs) ** 0.5
    assert alpha - 1 / (n + 1) - slack <= sum(alarms) / runs <= alpha + slack
    assert 1 - alpha - slack <= sum(covered) / runs <= 1 - alpha + 1 / (n + 1) + slack


def test_floats_do_not_lose_a_rank():
    for n, alpha in ((19, 0.1), (9, 0.3), (9, 0.7), (99, 0.29), (99, 0.57)):
        k = round(alpha * (n + 1))
        assert conformal_quantile(torch.arange(1.0, n + 1), alpha) == k


def test_the_ends_of_the_range():
    assert conformal_quantile(torch.arange(5.0), 1 - 1e-15) == 4
    assert conformal_quantile(torch.zeros(0), 0.5) == -math.inf
    assert conformal_quantile(torch.zeros(0), 1 - 1e-15) == -math.inf
    assert p_values(torch.zeros(0), torch.zeros(2)).tolist() == [1, 1]
    lowest = torch.tensor([-np.inf, 1.0])
    assert p_values(lowest, torch.tensor([-np.inf])).tolist() == pytest.approx([2 / 3])


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, float("nan"), "a", None, True])
def test_alpha_lies_between_0_and_1(alpha):
    with pytest.raises(InputError, match="alpha=.*between 0.*1"):
        conformal_quantile(torch.arange(5.0), alpha)
