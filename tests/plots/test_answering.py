"""The curve of answered queries, against counting at every threshold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from laplace_metric.plots import answering_plot


def vertices(axes):
    """Of the band: share answered -> its ends."""
    points = axes.collections[0].get_paths()[0].vertices
    ends: dict[float, list[float]] = {}
    for x, y in points:
        ends.setdefault(round(float(x), 9), []).append(float(y))
    return {x: (min(ys), max(ys)) for x, ys in ends.items()}


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 99))
def test_every_point_and_its_interval_are_counted(n, seed):
    g = np.random.default_rng(seed)
    u, right = g.integers(0, 6, n) / 5, g.integers(0, 2, n)
    axes = answering_plot({"p": u}, right).axes[0]
    x, y = axes.lines[0].get_data()
    limits, band = np.unique(u), vertices(axes)
    assert len(x) == len(limits)
    for limit, share, precision in zip(limits, x, y, strict=True):
        kept = right[u <= limit]
        assert share == pytest.approx(len(kept) / n)
        assert precision == pytest.approx(kept.mean())
        exact = binomtest(int(kept.sum()), len(kept)).proportion_ci(0.95, method="exact")
        assert band[round(float(share), 9)] == pytest.approx((exact.low, exact.high), abs=1e-6)


def test_marks_stand_where_so_much_is_answered():
    u, right = np.arange(10) / 10, np.arange(10) < 8
    marks = {"90%": 0.65, "none": -1.0}
    axes = answering_plot({"p": u, "distance": u[::-1]}, right, marks=marks).axes[0]
    points = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert points == [[[0.7, 1.0]]]
    assert [text.get_text() for text in axes.texts] == ["90%"]
