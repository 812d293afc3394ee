"""A monitor as a picture: every quantity over time, and the evidence below."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from laplace_metric.errors import InputError
from laplace_metric.monitor import Monitor
from laplace_metric.plots._curves import FONT, INK, STYLES, prepare

NOW, THEN, MARK = STYLES[0], STYLES[2], STYLES[1]


def monitor_plot(monitor: Monitor) -> Figure:
    """One panel a quantity, with the median and the 5-95 % band of each window, then the evidence.

    Examples
    --------
    >>> monitor = Monitor({"uncertainty": np.arange(100.0)}, window=50)
    >>> monitor.update({"uncertainty": np.arange(100.0)})[0].moved
    ('uncertainty',)
    >>> len(monitor_plot(monitor).axes)
    2
    """
    if not monitor.readings:
        raise InputError(
            f"the monitor has seen {monitor.n} queries: a plot needs a full window of "
            f"{monitor.window}."
        )
    rows = len(monitor.tracks) + 1
    figure = Figure(figsize=(7.2, 1.2 + 1.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 1, sharex=True)
    for axes, name in zip(panels, monitor.tracks, strict=False):
        _quantity(prepare(axes, "", name), monitor, name)
    _evidence(prepare(panels[-1], "queries", "log10 of the evidence"), monitor)
    for axes in panels:
        for place, alarm in enumerate(monitor.alarms):
            label = None if place else "alarm"
            axes.axvline(alarm.at, color=MARK.colour, ls=MARK.line, lw=1.2, label=label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0,
                    fontsize=FONT - 2, frameon=False, labelcolor=INK)  # fmt: skip
    return figure


def _quantity(axes: Axes, monitor: Monitor, name: str) -> None:
    moves = [reading.moves[name] for reading in monitor.readings]
    x = np.array([(reading.first + reading.last) / 2 for reading in monitor.readings])
    then = moves[0].then
    axes.axhspan(then.low, then.high, facecolor=(THEN.colour, 0.18), label="reference, 5 to 95%")
    axes.axhline(then.median, color=THEN.colour, ls=THEN.line, lw=1.2)
    medians = np.array([move.now.median for move in moves])
    ends = [[m.now.median - m.now.low for m in moves], [m.now.high - m.now.median for m in moves]]
    axes.errorbar(x, medians, ends, color=NOW.colour, fmt=NOW.marker, ms=4, lw=1.2,
                  label="window, median and 5 to 95%")  # fmt: skip
    moved = np.array([name in reading.moved for reading in monitor.readings])
    axes.plot(x[moved], medians[moved], MARK.marker, color=MARK.colour, ms=8, mfc="none", mew=1.6,
              label="moved")  # fmt: skip


def _evidence(axes: Axes, monitor: Monitor) -> None:
    x = [0, *(reading.last for reading in monitor.readings)]
    for style, name in zip(STYLES * len(monitor.tracks), monitor.tracks, strict=False):
        y = [0.0, *(reading.evidence[name] for reading in monitor.readings)]
        axes.plot(x, y, color=style.colour, ls=style.line, marker=style.marker, ms=4, label=name)
    level = float(np.log10(len(monitor.tracks) / monitor.false_alarms))
    axes.axhline(level, color=INK, lw=1, ls=":", label="level of an alarm")
    axes.set_yscale("symlog", linthresh=level)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
