"""Monitor plot: every quantity of a monitored stream over time, and the evidence of drift below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from laplace_metric.errors import InputError
from laplace_metric.plots._shown_figure import ShownFigure
from laplace_metric.plots._style import FONT, INK, STYLES, prepare

# A monitored stream: every quantity over time, and the evidence of drift below.

WINDOW, REFERENCE, MARK = STYLES[0], STYLES[2], STYLES[1]


def monitor_plot(
    windows: Sequence[Any],
    alarms: Sequence[Any],
    alarm_level: float,
    *,
    change: int | None = None,
) -> Figure:
    """Plot one panel a quantity, median and 5-95 % band of each window, and the evidence below.

    The evidence is known at the end of every window, and at its alarm, where it reaches the level:
    the curves go through both.

    Parameters
    ----------
    windows : sequence of ``monitor.WindowReport``
        Reports of the finished windows, in their order.
    alarms : sequence of ``monitor.Alarm``
        Alarms so far, to be marked.
    alarm_level : float
        Evidence (log10) that raises an alarm.
    change : int, optional
        Number of the query after which the stream is known to have changed, to be marked. None, the
        default: no mark.

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
        raise InputError("no full window to plot: more queries have to come first.")
    names = list(windows[0].shift_tests)
    rows = len(names) + 1
    figure = ShownFigure(figsize=(7.2, 1.5 + 1.7 * rows), layout="constrained")
    panels = figure.subplots(rows, 1, sharex=True)
    for axes, name in zip(panels, names, strict=False):
        _draw_quantity(prepare(axes, "", name), windows, name)
    evidence = prepare(panels[-1], "queries", "evidence of drift (log10)")
    _draw_evidence(evidence, windows, alarms, alarm_level)
    for axes, name in zip(panels, names, strict=False):
        _mark(axes, [alarm for alarm in alarms if alarm.name == name], change)
    _mark(evidence, alarms, change)
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), list(found), loc="outside lower center", ncols=3,
                  fontsize=FONT - 1, frameon=False, labelcolor=INK)  # fmt: skip
    return figure


def _mark(axes: Axes, alarms: Sequence[Any], change: int | None) -> None:
    """Mark the change of the stream, if it is known, the alarms, and their estimates of it."""
    if change is not None:
        axes.axvline(change, color=INK, lw=1.4, label=f"change, after query {change:,}")
    for alarm in alarms:
        axes.axvline(alarm.at, color=MARK.colour, ls=MARK.line, lw=1.2, label="alarm")
        axes.axvline(alarm.since, color=MARK.colour, ls=":", lw=1.2, label="its estimate of the "
                     "change")  # fmt: skip


def _draw_quantity(axes: Axes, windows: Sequence[Any], name: str) -> None:
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


def _draw_evidence(
    axes: Axes, windows: Sequence[Any], alarms: Sequence[Any], alarm_level: float
) -> None:
    names = windows[0].evidence
    for style, name in zip(STYLES * len(names), names, strict=False):
        points = {0: 0.0, **{alarm.at: alarm_level for alarm in alarms if alarm.name == name}}
        points |= {window.last: window.evidence[name] for window in windows}
        x = sorted(points)
        axes.plot(x, [points[at] for at in x], color=style.colour, ls=style.line,
                  marker=style.marker, ms=4, label=f"evidence, {name}")  # fmt: skip
    for alarm in alarms:
        axes.plot(alarm.at, alarm_level, "*", ms=11, color=MARK.colour)
        axes.annotate(f"{alarm.at:,}", (alarm.at, alarm_level), (6, -4), va="top", color=INK,
                      textcoords="offset points", fontsize=FONT - 2)  # fmt: skip
    axes.axhline(
        alarm_level, color=INK, lw=1, ls=":", label=f"level of an alarm, {alarm_level:.2g}"
    )
    axes.set_yscale("symlog", linthresh=alarm_level)
    low, high = axes.get_ylim()
    steps = [0.0] + [
        sign * step * 10.0**k for sign in (1, -1) for k in range(5) for step in (1, 2, 5)
    ]
    axes.set_yticks([y for y in steps if low <= y <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
