"""What each piece of evidence adds to a match probability, problem by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.plots._style import FAINT, SMALL, WIDTH, legend_below, quiet
from laplace_metric.plots._style import INK, STYLES

Row = dict[str, Any]


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
                  label="best rival" if y == 0 else None)  # fmt: skip
        axes.annotate(rivals[best], (1.01, y), xycoords=("axes fraction", "data"), va="center",
                      fontsize=SMALL, color=INK, annotation_clip=False)  # fmt: skip
    axes.set_yticks(range(len(ordered)), [row["problem"] for row in ordered])
    axes.set_xlabel("AUROC: is the nearest item right? (.5 is guessing)", fontsize=SMALL + 1)
    axes.axvline(0.5, **FAINT)
    legend_below(figure, 3, SMALL)
    return figure
