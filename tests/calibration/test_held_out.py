"""Cross-fitted probabilities lie on the scale of the fit that answers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from laplace_metric.calibration import calibrate_scores
from laplace_metric.calibration.probability._held_out import on_answering_scale
from laplace_metric.errors import InputError


@settings(max_examples=60, deadline=None)
@given(q=st.integers(1, 30), k=st.integers(1, 3), steps=st.integers(1, 6), seed=st.integers(0, 999))
def test_a_test_counts_at_least_what_the_answering_fit_accepts(q, k, steps, seed):
    g = np.random.default_rng(seed)
    held_out, answering = g.integers(0, steps, (q, k)) / steps, g.random((q, k))
    counts = g.random((q, k)) < 0.8
    scaled = on_answering_scale(held_out, answering, counts)
    assert np.array_equal(scaled[~counts], held_out[~counts])
    for column in range(k):
        rows = counts[:, column]
        new, old, of = scaled[rows, column], held_out[rows, column], answering[rows, column]
        assert all((new >= t).sum() >= (of >= t).sum() for t in of)
        assert np.isin(new, of).all()
        higher = old[:, None] > old
        assert (new[:, None] >= new)[higher].all()
        if len(np.unique(old)) == len(old):
            assert np.array_equal(np.sort(new), np.sort(of))


def lists(g: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists of ten hits whose gaps tell a right first hit, in steps: fits differ in height."""
    right = g.random(n) < 0.7
    first = np.where(right, g.normal(0.82, 0.07, n), g.normal(0.66, 0.09, n))
    gaps = g.exponential(0.03 + 0.1 * right[:, None], (n, 9)).cumsum(1)
    relevant = np.column_stack([right, g.random((n, 9)) < 0.2])
    return np.column_stack([first, first[:, None] - np.sort(gaps, 1)]), relevant


@pytest.mark.parametrize("n", [200, 400])
def test_cross_fitted_lists_keep_their_precision(n):
    """18 of 100 were broken when the heights of the parts were compared with those of the whole."""
    broken = given_ = 0
    for seed in range(WORLDS := 100):
        g = np.random.default_rng(500 + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibration = calibrate_scores(*lists(g, n))
        assert calibration.cross_fitted
        try:
            rule = calibration.guarantee(precision=0.9)
        except InputError:
            continue
        new, relevant = lists(g, 20_000)
        answered = np.asarray(rule(new).answered)
        given_ += 1
        broken += relevant[answered, 0].mean() < 0.9
    assert given_ >= 20
    assert binom.sf(broken - 1, WORLDS, 0.05) > 0.01, f"{broken} of {WORLDS} broken"
