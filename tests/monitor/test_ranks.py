"""Conformal p-values against their definition, and as uniform as they must be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from laplace_metric.monitor._windows import BLOCK, RunningRanks


def by_definition(reference, values, draws):
    seen, found = list(reference), []
    for value, draw in zip(values, draws, strict=True):
        seen.append(value)
        above, equal = (
            sum(test) for test in ([x > value for x in seen], [x == value for x in seen])
        )
        found.append((above + draw * equal) / len(seen))
    return np.array(found)


@pytest.mark.parametrize("levels", [5, 10**9], ids=["ties", "no ties"])
def test_definition(levels):
    r = np.random.default_rng(0)
    x, draws = r.integers(levels, size=150 + 90).astype(float), r.random(90)
    found = RunningRanks(x[:150]).p_values(x[150:], draws)
    np.testing.assert_array_equal(found, by_definition(x[:150], x[150:], draws))


def test_cuts_merges_and_restarts_change_nothing():
    r = np.random.default_rng(1)
    x, draws = r.integers(40, size=9 * BLOCK).astype(float), r.random(9 * BLOCK)
    whole = RunningRanks(x[:50]).p_values(x, draws)
    for size in (1, BLOCK - 1, 5 * BLOCK):
        ranks, parts = RunningRanks(x[:50]), []
        for i in range(0, len(x), size):
            if i % 3 == 1:
                ranks = RunningRanks(ranks.values)
            parts.append(ranks.p_values(x[i : i + size], draws[i : i + size]))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("levels", [3, 10**9], ids=["ties", "no ties"])
def test_independent_and_uniform(levels):
    """The reference is small and shared by all p-values of a stream: they must not show it."""
    r = np.random.default_rng(2)
    streams = []
    for _ in range(1500):
        x = np.floor(r.random(20) ** 3 * levels)
        streams.append(RunningRanks(x[:10]).p_values(x[10:], r.random(10)))
    p = np.array(streams)
    assert stats.kstest(p.ravel(), "uniform").pvalue > 0.01
    correlation = np.corrcoef(p.T)[~np.eye(10, dtype=bool)]
    assert np.abs(correlation).max() < 4.5 / np.sqrt(len(p))
    assert abs(p.mean(1).std() * np.sqrt(12 * 10) - 1) < 0.06  # sharing widens this
