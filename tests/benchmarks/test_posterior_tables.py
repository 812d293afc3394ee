"""Intervals of the tables of the posterior are over networks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks.posterior.tables import over_networks


def test_seeds_and_collections_of_a_network_are_one_number():
    values = {"a": [1.0, 3.0, 5.0], "b": [2.0], "c": [4.0, 8.0]}
    rows = [{"network": name} for name, some in values.items() for _ in some]
    mean, half = over_networks(rows, [x for some in values.values() for x in some])
    low, high = ttest_1samp([3.0, 2.0, 6.0], 0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_one_network_has_no_interval():
    mean, half = over_networks([{"network": "a"}] * 2, [1.0, 2.0])
    assert mean == 1.5
    assert np.isnan(half)
