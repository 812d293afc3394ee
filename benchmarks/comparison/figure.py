"""Loss curves and recall@1 of every trained method: ``python -m benchmarks.comparison.figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.comparison.methods import METHODS
from benchmarks.comparison.tables import rows_of
from laplace_metric.plots import STYLES

FIGURE = Path(__file__).parent.parent / "figures" / "comparison.png"
COLUMNS = 4


def loss_curves(size: int = 64) -> Figure:
    """One panel a method: the mean loss of each round, of each seed (of each ensemble member)."""
    shown = trained(size)
    n_rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(11, 2.1 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, COLUMNS, squeeze=False, sharex=True).ravel()
    for axes, (name, rows) in zip(panels, shown.items(), strict=False):
        panel(axes, name, rows)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("round of 2,560 images")
    figure.supylabel("training loss")
    return figure


def trained(size: int) -> dict[str, list[dict[str, Any]]]:
    """Runs of the methods that are trained; a line derived from another has its losses."""
    rows = rows_of(size)
    return {name: rows[name] for name in METHODS if name in rows and rows[name][0]["losses"]}


def panel(axes: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    """The curves of one method."""
    for style, row in zip(STYLES, rows, strict=False):
        curves = row["losses"] if isinstance(row["losses"][0], list) else [row["losses"]]
        for curve in curves:
            rounds = range(1, len(curve) + 1)
            axes.plot(rounds, curve, style.line, color=style.colour, marker=style.marker, ms=3)
    recall = sum(row["recall@1"] for row in rows) / len(rows)
    axes.set_title(f"{name}\nrecall@1 {recall:.3f}", fontsize=9)
    axes.tick_params(labelsize=7)


if __name__ == "__main__":
    loss_curves().savefig(FIGURE, dpi=110)
