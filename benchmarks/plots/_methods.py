"""All methods in one figure: differences with intervals, cost and quality, dots, a heat map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.plots._curves import around, logarithmic_x
from benchmarks.plots._style import SMALL, legend_below, panels
from laplace_metric.plots import INK, STYLES, Style

Interval = tuple[float, float, float]
"""Difference, low, high."""
Point = tuple[float, float]
Rgb = tuple[int, int, int]
BETTER, WORSE, EITHER = STYLES[0], STYLES[1], STYLES[3]
VERDICTS = {"clearly better": BETTER, "clearly worse": WORSE, "cannot be told": EITHER}
PANEL = (3.6, 4.4)
CANVAS = (190.0, 210.0)
"""Points across and along the axes of one panel, nearly: labels are placed on these."""
APART = (15.0, 12.0)
PLACES = [
    (radius * x, radius * y)
    for radius in (11.0, 18.0, 26.0, 35.0, 46.0)
    for x, y in ((1, 0), (0, 1), (-1, 0), (0, -1), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7),
                 (-0.7, -0.7))
]  # fmt: skip


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


class CostPoint(NamedTuple):
    """A method's cost and quality, in the look of its family."""

    name: str
    style: Style
    cost: float
    quality: float


def cost_plot(tasks: Mapping[str, Sequence[CostPoint]], cost: str, quality: str) -> Figure:
    """Quality against cost, one panel a task; methods are numbers, which the legend names."""
    figure, grid = panels(len(tasks), *PANEL)
    styles = {one.name: one.style for points in tasks.values() for one in points}
    numbers = {name: str(i) for i, name in enumerate(styles, start=1)}
    for axes, (title, points) in zip(grid, tasks.items(), strict=True):
        _cost_panel(axes, points, numbers)
        axes.set(title=title if len(tasks) > 1 else "", xlabel=cost)
    grid[0].set_ylabel(quality)
    key = [Line2D([], [], ls="", marker=style.marker, color=style.colour,
                  label=f"{numbers[name]} {name}") for name, style in styles.items()]  # fmt: skip
    legend_below(figure, max(2, 2 * len(tasks)), SMALL, handles=key)
    return figure


def _cost_panel(axes: Axes, points: Sequence[CostPoint], numbers: Mapping[str, str]) -> None:
    low, high = around([math.log10(one.cost) for one in points], 0.08)
    low, high = low - 0.04, high + 0.04
    bottom, top = around([one.quality for one in points], 0.08)
    places = [
        (CANVAS[0] * (math.log10(one.cost) - low) / (high - low),
         CANVAS[1] * (one.quality - bottom) / (top - bottom))
        for one in points
    ]  # fmt: skip
    for one, at, label in zip(points, places, place_labels(places), strict=True):
        axes.plot(one.cost, one.quality, one.style.marker, color=one.style.colour, ms=6)
        axes.annotate(numbers[one.name], (one.cost, one.quality),
                      (label[0] - at[0], label[1] - at[1]), textcoords="offset points",
                      fontsize=SMALL, color=INK, ha="center", va="center",
                      arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "#777", "shrinkA": 0,
                                  "shrinkB": 0})  # fmt: skip
    logarithmic_x(axes, 10 ** (high - low))
    axes.set(xlim=(10**low, 10**high), ylim=(bottom, top))


def place_labels(points: Sequence[Point], canvas: Point = CANVAS) -> list[Point]:
    """A place near each point, free of points and of the other places."""
    labels: list[Point] = []
    for i, (x, y) in enumerate(points):
        taken = [*points[:i], *points[i + 1 :], *labels]
        free = [at for dx, dy in PLACES if _is_free(at := (x + dx, y + dy), taken, canvas)]
        labels.append(free[0] if free else (x + PLACES[0][0], y))
    return labels


def _is_free(at: Point, taken: Sequence[Point], canvas: Point) -> bool:
    inside = 6 < at[0] < canvas[0] - 6 and 6 < at[1] < canvas[1] - 6
    return inside and all(abs(at[0] - x) > APART[0] or abs(at[1] - y) > APART[1] for x, y in taken)


@dataclass(frozen=True)
class DotPanel:
    """Values with standard errors of every method: metric -> (mean, error) of each."""

    methods: Sequence[str]
    metrics: Mapping[str, Sequence[Point]]
    label: str


def dot_plot(tasks: Mapping[str, DotPanel]) -> Figure:
    """Every method's metrics beside each other, one panel a task."""
    height = 0.24 * max(len(panel.methods) for panel in tasks.values()) + 1.3
    figure, grid = panels(len(tasks), 3.3 + 1.6 / len(tasks), height)
    for axes, (title, panel) in zip(grid, tasks.items(), strict=True):
        for i, (style, (name, values)) in enumerate(
            zip(STYLES, panel.metrics.items(), strict=False)
        ):
            shift = 0.16 * (i - (len(panel.metrics) - 1) / 2)
            axes.errorbar(
                [mean for mean, _ in values], [row + shift for row in range(len(values))],
                xerr=[error if math.isfinite(error) else 0.0 for _, error in values],
                fmt=style.marker, color=style.colour, ms=4.5, lw=1.2, label=name,
            )  # fmt: skip
        axes.axvline(0.5, color="#666", lw=1, ls=":")
        axes.set_yticks(range(len(panel.methods)), panel.methods)
        axes.set(title=title, ylim=(len(panel.methods) - 0.5, -0.5))
        axes.set_xlabel(panel.label, fontsize=SMALL)
    handles = max((axes.get_legend_handles_labels()[0] for axes in grid), key=len)
    legend_below(figure, 4, handles=handles)
    return figure


def heat_plot(
    columns: Sequence[str], rows: Mapping[str, Sequence[tuple[str, Rgb, str]]], title: str
) -> Figure:
    """Coloured cells (text, ground, colour of the text), one line a method."""
    wide, high = len(columns), len(rows)
    figure = Figure(figsize=(0.47 * wide + 2.2, 0.27 * high + 1.5), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow([[ground for _, ground, _ in cells] for cells in rows.values()], aspect="auto")
    for y, cells in enumerate(rows.values()):
        for x, (text, _, colour) in enumerate(cells):
            axes.text(x, y, text, color=colour, fontsize=7, ha="center", va="center")
    axes.set_xticks(range(wide), columns, rotation=45, ha="right", fontsize=SMALL)
    axes.set_yticks(range(high), list(rows), fontsize=SMALL)
    axes.set_title(title, fontsize=10)
    return figure
