"""All methods in one figure: differences with intervals, dots with their errors, a heat map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.plots._curves import around
from benchmarks.plots._style import (
    FAINT,
    SMALL,
    WIDTH,
    diverging,
    diverging_map,
    legend_below,
    letters_on,
    panels,
    quiet,
)
from laplace_metric.plots._style import INK, STYLES, Style

Interval = tuple[float, float, float]
"""Difference, low, high."""
Point = tuple[float, float]
"""Mean, standard error."""
BETTER, WORSE, EITHER = STYLES[0], STYLES[1], STYLES[3]
VERDICTS = {"clearly better": BETTER, "clearly worse": WORSE, "cannot be told": EITHER}


def forest_plot(differences: Mapping[str, Interval], label: str, direction: int) -> Figure:
    """A mark and its interval for each difference, the best on top, and a line at zero.

    Parameters
    ----------
    label : str
        Of the x axis.
    direction : int
        +1: right of zero is good; -1: left.
    """
    order = sorted(differences, key=lambda name: direction * differences[name][0], reverse=True)
    figure, (axes,) = panels(1, 4.6, 0.21 * len(order) + 1.2)
    for verdict, style in VERDICTS.items():
        rows = [
            i for i, name in enumerate(order) if _verdict(differences[name], direction) == verdict
        ]
        ends = [differences[order[i]] for i in rows]
        if not rows:
            continue
        lengths = [[a - low for a, low, _ in ends], [high - a for a, _, high in ends]]
        axes.errorbar([a for a, *_ in ends], rows, xerr=lengths, fmt=style.marker, ms=5, lw=1.6,
                      color=style.colour, label=verdict)  # fmt: skip
    axes.axvline(0, color=INK, lw=1)
    axes.set_yticks(range(len(order)), order)
    axes.set(xlabel=label, ylim=(len(order) - 0.4, -0.6))
    legend_below(figure, 3)
    return figure


def _verdict(ends: Interval, direction: int) -> str:
    if ends[1] <= 0 <= ends[2]:
        return "cannot be told"
    return "clearly better" if ends[0] * direction > 0 else "clearly worse"


@dataclass(frozen=True)
class DotPanel:
    """Metrics of every method on one task, each (mean, standard error), NaN where it has none.

    Parameters
    ----------
    methods : sequence of str
        In the order of the rows.
    metric : str
        Name of the first column.
    values : sequence of Point
        Of the first column.
    others, sets : str, mapping of name to sequence of Point
        Name of the second column, and what is in it.
    """

    methods: Sequence[str]
    metric: str
    values: Sequence[Point]
    others: str
    sets: Mapping[str, Sequence[Point]]


def dot_plot(tasks: Mapping[str, DotPanel], marked: str = "") -> Figure:
    """Two columns of dots for every task, rows in the order given; two tasks a line.

    Parameters
    ----------
    marked : str
        Methods whose names begin so are written in colour.
    """
    across = min(2, len(tasks))
    lines = -(-len(tasks) // across)
    longest = max(len(panel.methods) for panel in tasks.values())
    figure = Figure(figsize=(WIDTH / 2 * across, lines * (0.155 * longest + 1.25)),
                    layout="constrained")  # fmt: skip
    for axes in figure.subplots(lines, 2 * across, squeeze=False).flat:
        axes.set_axis_off()
    grid = figure.axes
    first = [value for panel in tasks.values() for value, _ in panel.values]
    for place, (title, panel) in enumerate(tasks.items()):
        left, right = grid[2 * place : 2 * place + 2]
        _dots(left, {panel.metric: panel.values}, panel.metric, STYLES)
        _dots(right, panel.sets, panel.others, STYLES[1:])
        for axes in (left, right):
            _names(axes, panel.methods, marked)
        right.tick_params(labelleft=False)
        left.set_title(title, fontsize=SMALL + 2, loc="left", color=INK)
        right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(panel.sets),
                     fontsize=SMALL - 1, frameon=False, labelcolor=INK, borderaxespad=0.2,
                     handletextpad=0.1, columnspacing=0.6)  # fmt: skip
        for axes in (left, right):
            axes.set_ylim(len(panel.methods) - 0.5, -0.5)
        left.set_xlim(*around([0.5, *first]))
    return figure


def _dots(
    axes: Axes, series: Mapping[str, Sequence[Point]], label: str, styles: Sequence[Style]
) -> None:
    axes.set_axis_on()
    quiet(axes)
    axes.axvline(0.5, **FAINT)
    for i, (style, (name, values)) in enumerate(zip(styles, series.items(), strict=False)):
        shift = 0.2 * (i - (len(series) - 1) / 2)
        axes.errorbar(
            [mean for mean, _ in values], [row + shift for row in range(len(values))],
            xerr=[error if math.isfinite(error) else 0.0 for _, error in values],
            fmt=style.marker, color=style.colour, ms=3.6, lw=1.1, label=name,
        )  # fmt: skip
    axes.set(xlim=(-0.03, 1.03), xlabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _names(axes: Axes, methods: Sequence[str], marked: str) -> None:
    axes.set_yticks(range(len(methods)), methods, fontsize=SMALL - 1)
    for text, name in zip(axes.get_yticklabels(), methods, strict=True):
        if marked and name.startswith(marked):
            text.set(color=STYLES[0].colour, fontweight="bold")


def heat_plot(columns: Sequence[str], rows: Mapping[str, Sequence[float]], label: str) -> Figure:
    """Correlations as coloured cells with their numbers, and the scale of the colours.

    Parameters
    ----------
    rows : mapping of name to values in [-1, 1], NaN where there is none
    label : str
        Of the scale.
    """
    wide, high = len(columns), len(rows)
    figure = Figure(figsize=(min(WIDTH, 0.36 * wide + 1.8), 0.21 * high + 2.1),
                    layout="constrained")  # fmt: skip
    axes = figure.add_subplot()
    values = np.ma.masked_invalid(np.array(list(rows.values()), dtype=np.float64))
    cells = axes.pcolormesh(values, cmap=diverging_map(), vmin=-1, vmax=1, lw=0)
    for y, line in enumerate(rows.values()):
        for x, value in enumerate(line):
            colour = letters_on(diverging(value)) if math.isfinite(value) else INK
            axes.text(x + 0.5, y + 0.5, _short(value), color=colour, fontsize=7, ha="center",
                      va="center")  # fmt: skip
    quiet(axes)
    axes.grid(visible=False)
    axes.set_xticks(np.arange(wide) + 0.5, columns, rotation=45, ha="right")
    axes.set_yticks(np.arange(high) + 0.5, list(rows))
    axes.invert_yaxis()
    bar = figure.colorbar(cells, ax=axes, location="bottom", shrink=0.5, aspect=40, pad=0.02)
    bar.set_label(label, fontsize=SMALL + 1, color=INK)
    bar.ax.tick_params(colors=INK, labelsize=SMALL)
    bar.outline.set_visible(False)
    return figure


def _short(value: float) -> str:
    """Two digits, no zero before the point."""
    if not math.isfinite(value):
        return "n/a"
    return f"{value:.2f}".replace("0.", ".").replace("-", "\u2212")
