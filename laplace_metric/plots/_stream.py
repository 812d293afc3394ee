"""A monitored stream: every quantity over time, and the evidence of drift below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from laplace_metric.errors import InputError
from laplace_metric.plots._shown import ShownFigure
from laplace_metric.plots._style import FONT, INK, STYLES, prepare

WINDOW, REFERENCE, MARK = STYLES[0], STYLES[2], STYLES[1]


class WindowSummary(Protocol):
    """One window of a stream, as ``monitor.WindowReport`` has it."""

    @property
    def first(self) -> int:
        """Its first query, counted from 1."""

    @property
    def last(self) -> int:
        """Its last query."""

    @property
    def shift_tests(self) -> Mapping[str, Any]:
        """By quantity: ``window`` and ``reference``, each with ``low``, ``median``, ``high``."""

    @property
    def drifted(self) -> Sequence[str]:
        """Quantities that differ from the reference."""

    @property
    def evidence(self) -> Mapping[str, float]:
        """log10 of the evidence of drift, by quantity."""


def monitor_plot(
    windows: Sequence[WindowSummary], alarms: Sequence[int], alarm_level: float
) -> Figure:
    """One panel a quantity, with the median and the 5-95 % band of each window, then the evidence.

    Parameters
    ----------
    windows : sequence of WindowSummary
    alarms : sequence of int
        Queries at which an alarm was raised.
    alarm_level : float
        log10 of the evidence that raises one.

    Raises
    ------
    InputError
        If there is no window.

    Examples
    --------
    >>> from laplace_metric.monitor import Monitor
    >>> reports = Monitor({"u": np.arange(100.0)}, window=50).update({"u": np.arange(100.0)})
    >>> len(monitor_plot(reports, [], 2.0).axes)
    2
    """
    if not windows:
        raise InputError("no window to plot: pass at least one.")
    names = list(windows[0].shift_tests)
    rows = len(names) + 1
    figure = ShownFigure(figsize=(7.2, 1.2 + 1.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 1, sharex=True)
    for axes, name in zip(panels, names, strict=False):
        _draw_quantity(prepare(axes, "", name), windows, name)
    evidence = prepare(panels[-1], "queries", "log10 of the evidence")
    _draw_evidence(evidence, windows, alarm_level)
    for axes in panels:
        for i, alarm in enumerate(alarms):
            label = None if i else "alarm"
            axes.axvline(alarm, color=MARK.colour, ls=MARK.line, lw=1.2, label=label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0,
                    fontsize=FONT - 2, frameon=False, labelcolor=INK)  # fmt: skip
    return figure


def _draw_quantity(axes: Axes, windows: Sequence[WindowSummary], name: str) -> None:
    x = np.array([(window.first + window.last) / 2 for window in windows])
    reference = windows[0].shift_tests[name].reference
    axes.axhspan(reference.low, reference.high, facecolor=(REFERENCE.colour, 0.18),
                 label="reference, 5 to 95%")  # fmt: skip
    axes.axhline(reference.median, color=REFERENCE.colour, ls=REFERENCE.line, lw=1.2)
    spreads = [window.shift_tests[name].window for window in windows]
    medians = np.array([s.median for s in spreads])
    bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    axes.errorbar(x, medians, bars, color=WINDOW.colour, fmt=WINDOW.marker, ms=4, lw=1.2,
                  label="window, median and 5 to 95%")  # fmt: skip
    drifted = np.array([name in window.drifted for window in windows])
    axes.plot(x[drifted], medians[drifted], MARK.marker, color=MARK.colour, ms=8, mfc="none",
              mew=1.6, label="drifted")  # fmt: skip


def _draw_evidence(axes: Axes, windows: Sequence[WindowSummary], alarm_level: float) -> None:
    x = [0, *(window.last for window in windows)]
    names = windows[0].evidence
    for style, name in zip(STYLES * len(names), names, strict=False):
        y = [0.0, *(window.evidence[name] for window in windows)]
        axes.plot(x, y, color=style.colour, ls=style.line, marker=style.marker, ms=4, label=name)
    axes.axhline(alarm_level, color=INK, lw=1, ls=":", label="level of an alarm")
    axes.set_yscale("symlog", linthresh=alarm_level)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
