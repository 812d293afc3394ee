"""The record as pictures: ``python -m benchmarks.retrieval.picture`` -> ``figures/*.png``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.records import RESULTS, read_record
from benchmarks.report.cost_figure import SMALL, quiet
from benchmarks.report.figures import FIGURES, save
from benchmarks.retrieval.split import ALPHAS, PROMISES, SHARES
from benchmarks.retrieval.tables import SCORES
from laplace_metric.plots import STYLES

Row = dict[str, Any]


def abstention(rows: Sequence[Row]) -> Figure:
    """Precision of the answers that are left as the least sure ones are not given."""
    figure = _panels(rows, _curves, "answers given, surest first (%)", "right among them (%)")
    figure.axes[0].legend(frameon=False, fontsize=SMALL, loc="lower left")
    return figure


def reliability(rows: Sequence[Row]) -> Figure:
    """Probability said against share of matches, nearest neighbours of queries never seen."""
    return _panels(rows, _reliable, "match probability said (%)", "share of matches (%)")


def promises(rows: Sequence[Row]) -> Figure:
    """Precision and coverage promised against obtained, one line a problem."""
    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.plot([75, 100], [75, 100], color="#666", lw=1, ls=":")
        quiet(axes)
    for style, row in zip(STYLES, rows, strict=False):
        look = {"color": style.colour, "marker": style.marker, "ls": style.line, "ms": 5, "lw": 1.2}
        pairs = [(t, row[f"precision {t:g} obtained"]) for t in PROMISES]
        made = [(100 * t, 100 * of["mean"]) for t, of in pairs if of["n"]]
        left.plot(*zip(*made, strict=True), label=row["problem"], **look) if made else None
        covered = [(1 - a, row.get(f"sets {1 - a:g} coverage")) for a in ALPHAS]
        held = [(100 * t, 100 * of["mean"], 100 * of["sd"]) for t, of in covered if of]
        x, y, error = zip(*held, strict=True)
        right.errorbar(x, y, error, label=row["problem"], capsize=2, **look)
    left.set(title="precision of accepted answers", xlabel="promised (%)", ylabel="obtained (%)")
    right.set(
        title="retrieval sets that hold a match", xlabel="promised (%)", ylabel="obtained (%)"
    )
    right.legend(frameon=False, fontsize=SMALL)
    return figure


def _panels(
    rows: Sequence[Row], draw: Callable[[Axes, Row], None], x: str, y: str, columns: int = 3
) -> Figure:
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.9 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, row in zip(grid.flat, rows, strict=False):
        draw(axes, row)
        axes.set_title(row["problem"], fontsize=SMALL + 2)
        quiet(axes)
    for axes in grid.flat[len(rows) :]:
        axes.set_axis_off()
    figure.supxlabel(x, fontsize=SMALL + 2)
    figure.supylabel(y, fontsize=SMALL + 2)
    return figure


def _curves(axes: Axes, row: Row) -> None:
    for style, name in zip(STYLES, SCORES, strict=False):
        precision = 100 * np.asarray(row[f"curve {name}"])
        axes.plot(
            100 * np.asarray(SHARES), precision, color=style.colour, ls=style.line, label=name
        )


def _reliable(axes: Axes, row: Row) -> None:
    said, right, count = (np.asarray(row[f"bin {name}"]) for name in ("said", "right", "queries"))
    there, style = count > 0.02 * count.sum(), STYLES[0]
    said, right = said / count.clip(min=1e-9), right / count.clip(min=1e-9)
    axes.plot([0, 100], [0, 100], color="#666", lw=1, ls=":")
    size = 10 + 200 * count[there] / count.sum()
    axes.plot(100 * said[there], 100 * right[there], color=style.colour, ls=style.line, lw=1)
    axes.scatter(100 * said[there], 100 * right[there], s=size, color=style.colour, alpha=0.6)


FIGURE = {"abstention": abstention, "reliability": reliability, "promises": promises}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", type=Path, default=RESULTS, help="folder of the JSON")
    parser.add_argument("--output", type=Path, default=FIGURES, help="folder of the pictures")
    options = parser.parse_args()
    rows = read_record("retrieval", options.input)["rows"]
    for name, draw in FIGURE.items():
        save(draw(rows), options.output / f"retrieval-{name}.png")


if __name__ == "__main__":
    main()
