"""Bootstrap intervals against scipy and theory; standard errors against numpy."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest

from laplace_metric.errors import InputError, UndefinedMetricWarning
from laplace_metric.evaluation import auroc, bootstrap_interval, r_auroc
from laplace_metric.evaluation._share_interval import share_interval


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_agrees_with_scipy(level):
    rows = np.random.default_rng(0).normal(size=150)
    ours = bootstrap_interval(np.mean, rows, n=3000, level=level, seed=generator())
    theirs = stats.bootstrap(
        (rows,),
        np.mean,
        n_resamples=3000,
        confidence_level=level,
        method="percentile",
        random_state=np.random.default_rng(1),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.07 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.07 * width)
    assert ours.estimate == rows.mean()
    assert (ours.level, ours.n, ours.n_undefined) == (level, 3000, 0)


def test_paired_rows_stay_together():
    rows = torch.arange(30.0)
    spread = bootstrap_interval(lambda a, b: (a - b).abs().max(), rows, rows + 1, n=50)
    assert (spread.low, spread.high) == (1.0, 1.0)
    alone = bootstrap_interval(lambda a, b: (a - b).abs().max(), rows, rows + 1, n=50, paired=False)
    assert alone.high > 1.0


def test_two_samples_keep_their_sizes():
    sizes = []

    def metric(inside, outside):
        sizes.append((len(inside), len(outside)))
        return auroc(inside, outside)

    inside, outside = torch.randn(40, generator=generator()), torch.randn(25, generator=generator())
    interval = bootstrap_interval(metric, inside, outside + 1, n=20, paired=False)
    assert set(sizes) == {(40, 25)}
    assert interval.low < interval.estimate < interval.high
    with pytest.raises(InputError, match=r"lengths \[40, 25\].*paired=False"):
        bootstrap_interval(metric, inside, outside, n=20)


def test_reproducible_and_leaves_global_state_alone():
    rows = torch.randn(40, generator=generator())
    before = torch.get_rng_state()
    first = bootstrap_interval(torch.mean, rows, n=30)
    assert torch.equal(before, torch.get_rng_state())
    assert first == bootstrap_interval(torch.mean, rows, n=30)
    seeded = bootstrap_interval(torch.mean, rows, n=30, seed=generator(7))
    assert seeded == bootstrap_interval(torch.mean, rows, n=30, seed=generator(7))
    assert seeded != first


def test_undefined_resamples_are_counted_not_averaged():
    correct = torch.tensor([0.0] + [1.0] * 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interval = bootstrap_interval(r_auroc, torch.arange(10.0).flip(0), correct, n=200)
    assert interval.estimate == 1.0
    assert 40 < interval.n_undefined < 110
    assert (interval.low, interval.high) == (1.0, 1.0)
    with pytest.warns(UndefinedMetricWarning, match="NaN.*every resample"):
        interval = bootstrap_interval(lambda x: math.nan, [1.0, 2.0], n=5)
    assert math.isnan(interval.low)


def test_an_estimate_that_is_undefined_is_not_silent():
    """Resamples without the row have a mean, the data themselves have none."""
    data = [float("nan"), 1.0, 2.0, 3.0]
    with pytest.warns(UndefinedMetricWarning, match="NaN.*data themselves"):
        interval = bootstrap_interval(lambda x: x.mean(), data, n=50)
    assert math.isnan(interval.estimate)
    assert 0 < interval.n_undefined < 50


# shares: exact intervals against their definition, counting, and scipy


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), share=st.floats(0, 1), level=st.sampled_from((0.5, 0.9, 0.95)))
def test_the_ends_are_those_of_scipy(n, share, level):
    k = round(share * n)
    low, high = share_interval(k, n, level)
    expected = binomtest(k, n).proportion_ci(level, method="exact")
    assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_no_query_says_nothing():
    low, high = share_interval([0, 0], [0, 3])
    assert (low[0], high[0]) == (0, 1)
    assert low[1] == 0
    assert high[1] == pytest.approx(1 - 0.025 ** (1 / 3))
