"""Curves of a few methods over common axes, and histograms, each series in a look of its own.

The functions of ``laplace_metric.plots`` give styles by position. Here a method keeps its style
from figure to figure, whichever others have been measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.plots._style import SMALL, legend_below, panels
from laplace_metric.plots._style import INK, STYLES, Style

SIZE = (4.2, 3.6)
RARE = 0.1
"""Marks up to this size are not joined by the line."""


class Axis(NamedTuple):
    """A label, limits (default: those of the data), whether in percent, ticks chosen by hand."""

    label: str
    limits: tuple[float, float] | None = None
    percent: bool = False
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Series:
    """A curve; without a style it is there for orientation.

    Parameters
    ----------
    errors : sequence
        Half lengths of vertical bars, or their lengths below and above.
    sizes : sequence
        Draws markers of these areas (1: the usual).
    line : str
        Dashes of a curve without a style.
    """

    name: str
    style: Style | None
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float] | Sequence[Sequence[float]] = field(default=())
    sizes: Sequence[float] = field(default=())
    line: str = ":"


def line_plot(series: Sequence[Series], x: Axis, y: Axis) -> Figure:
    """Curves over a grid, with a legend below."""
    figure, (axes,) = panels(1, *SIZE)
    for one in series:
        _draw(axes, one)
    _dress(axes, x, y)
    legend_below(figure, 2)
    return figure


def lines_plot(parts: Sequence[tuple[Sequence[Series], Axis]], x: Axis) -> Figure:
    """Panels of the same curves over one grid, each with an axis of its own, and one legend."""
    figure, panels_of = panels(len(parts), *SIZE)
    for axes, (series, y) in zip(panels_of, parts, strict=True):
        for one in series:
            _draw(axes, one)
        _dress(axes, x, y)
    handles = panels_of[0].get_legend_handles_labels()
    legend_below(figure, 3, handles=handles[0], labels=handles[1])
    return figure


def _draw(axes: Axes, one: Series) -> None:
    x, y = (np.asarray(values, dtype=np.float64) for values in (one.x, one.y))
    if one.style is None:
        axes.plot(x, y, color=INK, lw=1, ls=one.line, alpha=0.7, label=one.name)
        return
    look: dict[str, Any] = {
        "color": one.style.colour,
        "ls": one.style.line,
        "lw": 2,
        "label": one.name,
    }
    if not one.sizes:
        axes.plot(x, y, **look)
        return
    sizes = np.asarray(one.sizes, dtype=np.float64)
    often = sizes > RARE
    axes.plot(x[often], y[often], **{**look, "label": None})
    filled = [(one.style.colour, 0.6)] * len(x)
    axes.scatter(x, y, s=36 * sizes, marker=one.style.marker, facecolors=filled,
                 edgecolors=one.style.colour, label=one.name)  # fmt: skip
    if one.errors:
        axes.errorbar(x, y, one.errors, fmt="none", ecolor=one.style.colour, elinewidth=1.5)


def _dress(axes: Axes, x: Axis, y: Axis) -> None:
    axes.set(xlabel=x.label, ylabel=y.label)
    for one, axis, limit in ((x, axes.xaxis, axes.set_xlim), (y, axes.yaxis, axes.set_ylim)):
        if one.limits is not None:
            limit(*one.limits)
        if one.ticks:
            axis.set_ticks(one.ticks)
        if one.percent:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))


def points_plot(
    groups: Sequence[str], series: Mapping[str, Sequence[float]], label: str, form: str
) -> Figure:
    """A point a value, with the value in ``form``: a logarithmic axis has no zero for bars."""
    figure, (axes,) = panels(1, 7.0, 0.22 * len(groups) * (len(series) + 1) + 0.9)
    high = 0.8 / len(series)
    for i, (style, (name, values)) in enumerate(zip(STYLES, series.items(), strict=False)):
        places = [row + high * (i - (len(series) - 1) / 2) for row in range(len(groups))]
        axes.plot(values, places, ls="", marker=style.marker, ms=8, color=style.colour, label=name)
        for value, place in zip(values, places, strict=True):
            axes.annotate(form % value, (value, place), (8, 0), textcoords="offset points",
                          va="center", fontsize=SMALL, color=INK)  # fmt: skip
    for row in range(len(groups) - 1):
        axes.axhline(row + 0.5, color=INK, alpha=0.25, lw=0.8)
    axes.set_yticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=label)
    known = [value for values in series.values() for value in values]
    logarithmic_x(axes, max(known) / min(known))
    axes.margins(x=0.12)
    axes.invert_yaxis()
    legend_below(figure, len(series))
    return figure


def histogram_plot(
    edges: Sequence[float], shares: Mapping[str, Sequence[float]], logarithmic: bool
) -> Figure:
    """Steps of the shares of each set, in common bins."""
    figure, (axes,) = panels(1, *SIZE)
    for style, (name, share) in zip(STYLES, shares.items(), strict=False):
        axes.stairs(share, edges, fill=True, facecolor=(style.colour, 0.18),
                    edgecolor=style.colour, ls=style.line, lw=1.6, label=name)  # fmt: skip
    top = max(max(share) for share in shares.values()) or 1.0
    _dress(axes, Axis("uncertainty"), Axis("share of inputs", (0.0, 1.05 * top), True))
    if logarithmic:
        logarithmic_x(axes, edges[-1] / edges[0])
    axes.set_xlim(edges[0], edges[-1])
    legend_below(figure, 2)
    return figure


def logarithmic_x(axes: Axes, ratio: float) -> None:
    """A logarithmic x axis with a few plain numbers; ``ratio``: the highest over the lowest."""
    steps = (1.0,) if ratio > 300 else (1.0, 2.0, 5.0) if ratio > 8 else (1.0, 1.5, 2, 3, 4, 5, 7)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=15))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def around(values: Sequence[float], room: float = 0.06) -> tuple[float, float]:
    """Limits that hold all finite values, with a little room at both ends.

    Examples
    --------
    >>> around([0.0, float("nan"), 1.0])
    (-0.06, 1.06)
    >>> around([0.5])
    (0.44, 0.56)
    """
    finite = [x for x in values if math.isfinite(x)] or [1.0]
    low, high = min(finite), max(finite)
    apart = (high - low) or max(abs(high), 1.0)
    return low - room * apart, high + room * apart
