"""Conformal p-values against their definition, and as uniform as they must be."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from scipy import stats

from laplace_metric.monitor._monitor import rank_p_values


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
    found = rank_p_values(array("d", sorted(x[:150])), x[150:], draws)
    np.testing.assert_array_equal(found, by_definition(x[:150], x[150:], draws))


@pytest.mark.parametrize("levels", [3, 10**9], ids=["ties", "no ties"])
def test_independent_and_uniform(levels):
    """The reference is small and shared by all p-values of a stream: they must not show it."""
    r = np.random.default_rng(2)
    streams = []
    for _ in range(1500):
        x = np.floor(r.random(20) ** 3 * levels)
        streams.append(rank_p_values(array("d", sorted(x[:10])), x[10:], r.random(10)))
    p = np.array(streams)
    assert stats.kstest(p.ravel(), "uniform").pvalue > 0.01
    correlation = np.corrcoef(p.T)[~np.eye(10, dtype=bool)]
    assert np.abs(correlation).max() < 4.5 / np.sqrt(len(p))
    assert abs(p.mean(1).std() * np.sqrt(12 * 10) - 1) < 0.06  # sharing widens this
