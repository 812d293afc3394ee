"""What a search promises and keeps, problem by problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots._style import SMALL, panels
from laplace_metric.plots import STYLES

Row = dict[str, Any]


def abstention_plot(rows: Sequence[Row], scores: Sequence[str], shares: Sequence[float]) -> Figure:
    """Precision of the answers that are left as the least sure ones are not given."""
    figure = _panels(
        rows,
        partial(_curves, scores=scores, shares=shares),
        "answers given, surest first (%)",
        "right among them (%)",
    )
    figure.axes[0].legend(frameon=False, fontsize=SMALL, loc="lower left")
    return figure


def reliability_plots(rows: Sequence[Row]) -> Figure:
    """Probability said against share of matches, nearest neighbours of queries never seen."""
    return _panels(rows, _reliable, "match probability said (%)", "share of matches (%)")


def promises_plot(
    rows: Sequence[Row], precisions: Sequence[float], coverages: Sequence[float]
) -> Figure:
    """Precision and coverage promised against obtained, one line a problem.

    Where styles run out they come again with hollow markers.
    """
    figure, (left, right) = panels(2, 4.3, 4.2)
    for axes in (left, right):
        axes.plot([75, 100], [75, 100], color="#666", lw=1, ls=":")
    for number, (style, row) in enumerate(zip(cycle(STYLES), rows, strict=False)):
        look: dict[str, Any] = {
            "color": style.colour,
            "marker": style.marker,
            "mfc": style.colour if number < len(STYLES) else "white",
            "ls": style.line,
            "ms": 5,
            "lw": 1.2,
        }
        pairs = [(t, row[f"precision {t:g} obtained"]) for t in precisions]
        made = [(100 * t, 100 * of["mean"]) for t, of in pairs if of["n"]]
        left.plot(*zip(*made, strict=True), label=row["problem"], **look) if made else None
        covered = [(c, row.get(f"sets {c:g} coverage")) for c in coverages]
        held = [(100 * t, 100 * of["mean"], 100 * of["sd"]) for t, of in covered if of]
        x, y, error = zip(*held, strict=True)
        right.errorbar(x, y, error, label=row["problem"], capsize=2, **look)
    left.set(title="precision of accepted answers", xlabel="promised (%)", ylabel="obtained (%)")
    right.set(
        title="retrieval sets that hold a match", xlabel="promised (%)", ylabel="obtained (%)"
    )
    right.legend(frameon=False, fontsize=SMALL)
    return figure


def _panels(rows: Sequence[Row], draw: Callable[[Axes, Row], None], x: str, y: str) -> Figure:
    figure, grid = panels(len(rows), 3.3, 2.9, columns=3)
    for axes, row in zip(grid, rows, strict=True):
        draw(axes, row)
        axes.set_title(row["problem"], fontsize=SMALL + 2)
    figure.supxlabel(x, fontsize=SMALL + 2)
    figure.supylabel(y, fontsize=SMALL + 2)
    return figure


def _curves(axes: Axes, row: Row, *, scores: Sequence[str], shares: Sequence[float]) -> None:
    for style, name in zip(STYLES, scores, strict=False):
        precision = 100 * np.asarray(row[f"curve {name}"])
        axes.plot(
            100 * np.asarray(shares), precision, color=style.colour, ls=style.line, label=name
        )


def _reliable(axes: Axes, row: Row) -> None:
    said, right, count = (np.asarray(row[f"bin {name}"]) for name in ("said", "right", "queries"))
    often, style = count > 0.02 * count.sum(), STYLES[0]
    said, right = said / count.clip(min=1e-9), right / count.clip(min=1e-9)
    axes.plot([0, 100], [0, 100], color="#666", lw=1, ls=":")
    size = 10 + 200 * count[often] / count.sum()
    axes.plot(100 * said[often], 100 * right[often], color=style.colour, ls=style.line, lw=1)
    axes.scatter(100 * said[often], 100 * right[often], s=size, color=style.colour, alpha=0.6)
