"""Plots: what is drawn, that series differ in more than colour, and that nothing global changes."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import binomtest

from laplace_metric.errors import InputError
from laplace_metric.evaluation import (
    expected_calibration_error,
)
from tests.rooms import room

plots = room("laplace_metric.plots")

NAMES = ("a", "b", "c")
RELIABLE = {name: expected_calibration_error([0.35, 0.55, 0.95], [0, 1, 1]) for name in NAMES}


def styles(figure):
    return [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_reliability_draws_the_bins_that_hold_queries():
    figure = plots.reliability_plot(RELIABLE)
    axes = figure.axes[0]
    assert len(axes.lines) == 4
    assert len(axes.collections) == 6
    points = np.asarray(axes.collections[0].get_offsets())
    np.testing.assert_allclose(points, [[0.35, 0], [0.55, 1], [0.95, 1]])
    assert legend(figure) == ["honest", *(f"{name} (n = 3)" for name in NAMES)]


def test_reliability_has_the_interval_of_each_bin():
    confidence, right = [0.35] * 10 + [0.95] * 40, [1] * 4 + [0] * 6 + [1] * 40
    figure = plots.reliability_plot({"a": expected_calibration_error(confidence, right)})
    ends = figure.axes[0].collections[1].get_segments()
    for segment, x, k, n in zip(ends, (0.35, 0.95), (4, 40), (10, 40), strict=True):
        interval = binomtest(k, n).proportion_ci(method="wilson")
        np.testing.assert_allclose(segment, [[x, interval.low], [x, interval.high]], atol=1e-9)


def test_reliability_joins_no_bin_that_is_rare():
    confidence = [0.95] * 99 + [0.15]
    figure = plots.reliability_plot({"a": expected_calibration_error(confidence, [1] * 100)})
    axes = figure.axes[0]
    assert len(axes.lines[1].get_xdata()) == 1
    assert len(axes.collections[0].get_offsets()) == 2


def test_histograms_hold_every_value_and_sum_to_one():
    figure = plots.uncertainty_plot([0.001, 0.02, 0.3], {"noise": [0.5, 9.0]})
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert legend(figure) == ["queries", "noise"]
    assert axes.get_xlabel() == "uncertainty"
    other = plots.uncertainty_plot([0.1, 0.3], {"noise": [0.5]}, name="epistemic")
    assert other.axes[0].get_xlabel() == "epistemic"
    for patch in axes.patches:
        assert patch.get_data().values.sum() == pytest.approx(1)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0, 1.5], [-1.0, 100.0]])
def test_histograms_of_constant_close_or_negative_values_are_linear(values):
    axes = plots.uncertainty_plot(values, {"same": values}).axes[0]
    assert axes.get_xscale() == "linear"
    assert axes.patches[0].get_data().values.sum() == pytest.approx(1)


def test_series_differ_in_colour_and_in_line():
    used = styles(plots.reliability_plot(RELIABLE))[-3:]
    assert len({colour for colour, _ in used}) == 3
    assert len({line for _, line in used}) == 3


def test_given_axes_are_drawn_into():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.reliability_plot(RELIABLE, left) is figure
    assert len(left.lines) == 4
    assert not right.lines


def test_too_many_or_no_series_are_refused():
    with pytest.raises(InputError, match="0 series"):
        plots.reliability_plot({})
    with pytest.raises(InputError, match="7 series"):
        plots.reliability_plot({str(i): RELIABLE["a"] for i in range(7)})


def test_plots_leave_the_settings_alone():
    before = dict(mpl.rcParams)
    plots.svg_of(plots.reliability_plot(RELIABLE))
    assert dict(mpl.rcParams) == before
