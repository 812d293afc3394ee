"""Quality against cost: every point with the name of its method beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.plots._curves import around, logarithmic_x
from benchmarks.plots._style import SMALL, WIDTH, legend_below, panels, titled
from laplace_metric.plots._style import INK, Style

LINE = 0.128
"""Inches from name to name."""


KEYS = 3
"""Families that one line of the legend holds below a panel."""


class CostPoint(NamedTuple):
    """A method's cost and quality, in the look of its family; ``error`` is a standard error."""

    name: str
    style: Style
    cost: float
    quality: float
    family: str = ""
    error: float = math.nan


def cost_plot(tasks: Mapping[str, Sequence[CostPoint]], cost: str, quality: str) -> Figure:
    """Quality against cost, one panel a task, two a line.

    Names stand in a column on the right, in the order of their points from top to bottom, each
    joined to its point.
    """
    most = max(len(points) for points in tasks.values())
    height = max(3.2, LINE * most + 0.75)
    figure, grid = panels(len(tasks), WIDTH / 2, height, min(2, len(tasks)))
    for axes, (title, points) in zip(grid, tasks.items(), strict=True):
        _cost_panel(axes, points, LINE / (height - 0.75))
        axes.set(xlabel=cost, ylabel=quality)
        titled(axes, title if len(tasks) > 1 else "")
    styles = {one.family: one.style for points in tasks.values() for one in points}
    key = [Line2D([], [], ls="", marker=style.marker, color=style.colour, label=family)
           for family, style in styles.items()]  # fmt: skip
    legend_below(figure, min(len(key), KEYS * len(grid)), SMALL, handles=key)
    return figure


def _cost_panel(axes: Axes, points: Sequence[CostPoint], apart: float) -> None:
    low, high = around([math.log10(one.cost) for one in points], 0.05)
    low, high = low - 0.02, high + 0.02
    ends = [one.quality + sign * _length(one) for one in points for sign in (-1, 1)]
    bottom, top = around(ends, 0.04)
    for one in points:
        look: dict[str, Any] = {"color": one.style.colour, "lw": 1}
        axes.plot(one.cost, one.quality, one.style.marker, ms=5, **look)
        axes.vlines(one.cost, one.quality - _length(one), one.quality + _length(one), **look)
    order = sorted(points, key=lambda one: one.quality)
    places = spread([(one.quality - bottom) / (top - bottom) for one in order], apart)
    for one, place in zip(order, places, strict=True):
        axes.annotate(
            one.name, (one.cost, one.quality), (1.06, place), textcoords="axes fraction",
            fontsize=SMALL - 1, color=INK, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": one.style.colour, "alpha": 0.7,
                        "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
        )  # fmt: skip
    logarithmic_x(axes, 10 ** (high - low))
    axes.set(xlim=(10**low, 10**high), ylim=(bottom, top))


def _length(one: CostPoint) -> float:
    return one.error if math.isfinite(one.error) else 0.0


def spread(values: Sequence[float], apart: float) -> list[float]:
    """The places in [0, 1] nearest to rising values that are at least ``apart`` from each other.

        min sum_i (p_i - v_i)^2   subject to   p_{i + 1} - p_i >= apart,   0 <= p_i <= 1

    With q_i = p_i - i apart that is isotonic regression, by pooling adjacent violators, cut off at
    both ends. Where they do not all fit, they are spread evenly.

    Examples
    --------
    >>> spread([0.5, 0.5, 1.0], 0.25)
    [0.375, 0.625, 1.0]
    >>> spread([0.1, 0.1, 0.1], 0.6)
    [0.0, 0.5, 1.0]
    """
    room = 1 - (len(values) - 1) * apart
    if room <= 0:
        return [i / (len(values) - 1) for i in range(len(values))]
    blocks: list[tuple[float, int]] = []
    for i, value in enumerate(values):
        mean, n = value - i * apart, 1
        while blocks and blocks[-1][0] > mean:
            other, m = blocks.pop()
            mean, n = (mean * n + other * m) / (n + m), n + m
        blocks.append((mean, n))
    pooled = [mean for mean, n in blocks for _ in range(n)]
    return [min(max(q, 0.0), room) + i * apart for i, q in enumerate(pooled)]
