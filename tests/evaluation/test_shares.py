"""Exact intervals of shares, against their definition, counting, and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from laplace_metric.errors import InputError
from laplace_metric.evaluation._intervals import share_interval


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), share=st.floats(0, 1), level=st.sampled_from((0.5, 0.9, 0.95)))
def test_the_ends_are_those_of_scipy(n, share, level):
    k = round(share * n)
    low, high = share_interval(k, n, level)
    expected = binomtest(k, n).proportion_ci(level, method="exact")
    assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_true_share_is_inside_as_often_as_said():
    """Over all outcomes of 30 queries, whatever the share: 95 % or more."""
    k = np.arange(31)
    low, high = share_interval(k, np.full(31, 30))
    for share in np.linspace(0.01, 0.99, 50):
        inside = (low <= share) & (share <= high)
        assert binom.pmf(k, 30, share)[inside].sum() >= 0.95


def test_no_query_says_nothing():
    low, high = share_interval([0, 0], [0, 3])
    assert (low[0], high[0]) == (0, 1)
    assert low[1] == 0
    assert high[1] == pytest.approx(1 - 0.025 ** (1 / 3))


@pytest.mark.parametrize(
    ("k", "n", "level"), [(3, 2, 0.95), (-1, 2, 0.95), (0.5, 2, 0.95), ([1, 2], 2, 0.95), (1, 2, 1)]
)
def test_bad_input_is_named(k, n, level):
    with pytest.raises(InputError):
        share_interval(k, n, level)
