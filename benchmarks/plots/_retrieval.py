"""What a search promises and keeps, problem by problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots._style import (
    FAINT,
    SMALL,
    WIDTH,
    legend_below,
    legends_of,
    panels,
    quiet,
    titled,
)
from laplace_metric.plots._style import INK, STYLES
from laplace_metric.plots._wilson import wilson_interval

Row = dict[str, Any]
Array = npt.NDArray[np.float64]
FEW = 5
"""A bin with fewer queries, in the mean of the splits, is not shown."""


def abstention_plot(rows: Sequence[Row], scores: Sequence[str], shares: Sequence[float]) -> Figure:
    """Precision of the answers that are left as the least sure ones are not given.

    Bands are 95 % intervals of the first score, for the queries of one split.
    """
    figure = _panels(
        rows,
        partial(_curves, scores=scores, shares=shares),
        "answers given, surest first (%)",
        "right, of those given (%)",
    )
    found = legends_of(figure.axes[:1])
    legend_below(figure, 4, SMALL, handles=list(found.values()), labels=list(found))
    return figure


def evidence_plot(
    rows: Sequence[Row], steps: Sequence[tuple[str, str]], rivals: Mapping[str, str]
) -> Figure:
    """AUROC as evidence is added, a line a problem, the best last; hollow: the best rival.

    Parameters
    ----------
    steps : (key of the row, words) of each step, in their order
    rivals : words of each key
    """
    ordered = sorted(rows, key=lambda row: row[steps[-1][0]]["mean"])
    figure = Figure(figsize=(WIDTH, 0.34 * len(rows) + 1.6), layout="constrained")
    axes = figure.subplots()
    quiet(axes)
    for y, row in enumerate(ordered):
        found = [row[key]["mean"] for key, _ in steps]
        axes.plot([min(found), max(found)], [y, y], color=INK, alpha=0.25, lw=2, zorder=1)
        for number, ((_, words), value) in enumerate(zip(steps, found, strict=True)):
            style = STYLES[number]
            axes.plot(value, y, ls="", marker=style.marker, color=style.colour, ms=8,
                      label=words if y == 0 else None, zorder=3 + number)  # fmt: skip
        best = max(rivals, key=lambda key: row[key]["mean"])
        axes.plot(row[best]["mean"], y, ls="", marker="o", mfc="none", mec=INK, ms=12,
                  label="best rival with the same information" if y == 0 else None)  # fmt: skip
        axes.annotate(rivals[best], (1.01, y), xycoords=("axes fraction", "data"), va="center",
                      fontsize=SMALL, color=INK, annotation_clip=False)  # fmt: skip
    axes.set_yticks(range(len(ordered)), [row["problem"] for row in ordered])
    axes.set_xlabel("AUROC: is the nearest item right? (.5 is guessing)", fontsize=SMALL + 1)
    axes.axvline(0.5, **FAINT)
    legend_below(figure, 3, SMALL)
    return figure


def reliability_plots(rows: Sequence[Row]) -> Figure:
    """Probability said against share of matches, nearest neighbours of queries never seen.

    Vertical bars are 95 % intervals for the queries of one split; columns at the bottom are the
    shares of the queries in each bin.
    """
    figure = _panels(rows, _reliable, "match probability said (%)", "share that does match (%)")
    found = legends_of(figure.axes[:1])
    legend_below(figure, len(found), SMALL, handles=list(found.values()), labels=list(found))
    return figure


def promises_plot(
    rows: Sequence[Row], precisions: Sequence[float], coverages: Sequence[float]
) -> Figure:
    """Precision and coverage obtained, a column a promise, a row a problem.

    Beside each row: in how many of the splits the promise could be made. A promise that was never
    made has no column.
    """
    kinds: Mapping[str, tuple[str, Sequence[float]]] = {
        "precision {:g} obtained": ("accepted answers that are right (%)", precisions),
        "sets {:g} coverage": ("sets that hold a match (%)", coverages),
    }
    kinds = {
        key: (label, sorted(t for t in promised if _made(rows, key.format(t))))
        for key, (label, promised) in kinds.items()
    }
    columns = max(len(promised) for _, promised in kinds.values())
    height = 2 * (0.19 * len(rows) + 1.15)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(len(kinds), columns, squeeze=False)
    for line, (key, (label, promised)) in zip(grid, kinds.items(), strict=True):
        for axes, target in zip(line, promised, strict=False):
            _promise(axes, rows, key.format(target), target, label)
        for axes in line[1:]:
            axes.tick_params(labelleft=False)
        for axes in line[len(promised) :]:
            axes.set_axis_off()
    found = legends_of(grid[0][:1])
    legend_below(figure, len(found), SMALL, handles=list(found.values()), labels=list(found))
    return figure


def _made(rows: Sequence[Row], key: str) -> bool:
    return any(row.get(key, {"n": 0})["n"] for row in rows)


def _promise(axes: Axes, rows: Sequence[Row], key: str, target: float, label: str) -> None:
    quiet(axes)
    style = STYLES[0]
    axes.axvline(100 * target, color=INK, lw=1.2, label="guaranteed")
    for y, row in enumerate(rows):
        of = row.get(key, {"n": 0})
        if of["n"]:
            axes.errorbar(
                100 * of["mean"], y, xerr=100 * of["sd"], fmt=style.marker, color=style.colour,
                ms=4, lw=1.2, label="obtained: mean and standard deviation over the splits",
            )  # fmt: skip
        axes.text(1.02, y, f"{of['n']} of {row['splits']}", transform=axes.get_yaxis_transform(),
                  fontsize=SMALL - 1, va="center", color=INK)  # fmt: skip
    axes.text(1.02, -0.75, "made in", transform=axes.get_yaxis_transform(), fontsize=SMALL - 1,
              va="bottom", color=INK)  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["problem"] for row in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.7), xlim=(74, 101), xlabel=label)
    axes.set_title(f"guaranteed: {100 * target:g} %", fontsize=SMALL + 1, loc="left")


def _panels(rows: Sequence[Row], draw: Callable[[Axes, Row], None], x: str, y: str) -> Figure:
    columns = min(3, len(rows))
    figure, grid = panels(len(rows), WIDTH / 3, 2.6, columns, sharex=True, sharey=True)
    for axes, row in zip(grid, rows, strict=True):
        draw(axes, row)
        axes.set(xlim=(-2, 102), ylim=(-2, 102))
        n = round(sum(row["bin queries"]))
        titled(axes, f"{row['problem']} (n = {n:,})")
    for axes in grid[-columns:]:
        axes.set_xlabel(x)
    for axes in grid[::columns]:
        axes.set_ylabel(y)
    return figure


def _curves(axes: Axes, row: Row, *, scores: Sequence[str], shares: Sequence[float]) -> None:
    x, n = 100 * np.asarray(shares), np.asarray(shares) * sum(row["bin queries"])
    for style, name in zip(STYLES, scores, strict=False):
        right = np.asarray(row[f"curve {name}"], dtype=np.float64)
        if name == scores[0]:
            low, high = wilson_interval(right * n, n)
            axes.fill_between(x, 100 * low, 100 * high, color=style.colour, alpha=0.2, lw=0,
                              label=f"95 % interval, {name}")  # fmt: skip
        axes.plot(x, 100 * right, color=style.colour, ls=style.line, lw=1.5, label=name)


def _reliable(axes: Axes, row: Row) -> None:
    said, right, count = (np.asarray(row[f"bin {name}"]) for name in ("said", "right", "queries"))
    style, shown = STYLES[0], count >= FEW
    x, y = 100 * said[shown] / count[shown], 100 * right[shown] / count[shown]
    low, high = wilson_interval(right[shown], count[shown])
    edges = np.linspace(0, 100, len(count) + 1)
    axes.stairs(100 * count / count.sum(), edges, fill=True, facecolor=(INK, 0.15),
                label="share of the queries (%)")  # fmt: skip
    axes.plot([0, 100], [0, 100], label="honest", **FAINT)
    bars = [(y - 100 * low).clip(min=0), (100 * high - y).clip(min=0)]
    axes.errorbar(x, y, bars, fmt=style.marker, ms=4, lw=1.2, color=style.colour,
                  label="share that does match, 95 % interval")  # fmt: skip
