"""How time and memory of a fit grow with the number of points."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.plots._style import SMALL, WIDTH, panels, titled
from benchmarks.timing import slope
from laplace_metric.plots._style import INK, STYLES

Row = dict[str, Any]
NAMES = {"diag": "diagonal", "kron": "Kronecker"}
MEMORY = {
    "peak": "peak_mb", "peak without mapped files, freed blocks given back": "own_peak_mb",
    "before the fit, after imports": "base_mb", "size of the features, on disk": "features_mb",
}  # fmt: skip


def scale_plot(rows: list[Row]) -> Figure:
    """A panel for time, by structure, and one for the memory of the diagonal fit."""
    figure, (time, memory) = panels(2, WIDTH / 2, 3.3, 2)
    by_structure = {name: [r for r in rows if r["structure"] == s] for s, name in NAMES.items()}
    for style, (name, own) in zip(STYLES, by_structure.items(), strict=False):
        n, wall = ([row[key] for row in own] for key in ("n", "wall_seconds"))
        fitted = slope(n, wall)
        label = name if fitted is None else f"{name}: time ~ N^{fitted:.2f}"
        time.plot(n, wall, color=style.colour, ls=style.line, marker=style.marker, ms=5,
                  label=label)  # fmt: skip
    time.set_ylabel("seconds")
    titled(time, "How long does a fit take?")
    diagonal = by_structure["diagonal"]
    for style, (name, key) in zip(STYLES, MEMORY.items(), strict=False):
        memory.plot([row["n"] for row in diagonal], [row[key] for row in diagonal],
                    color=style.colour, ls=style.line, marker=style.marker, ms=5,
                    label=name)  # fmt: skip
    memory.set_ylabel("MB")
    titled(memory, "How much memory does the diagonal fit take?")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log", xlabel="points N")
        _dress(axes)
    return figure


def _dress(axes: Axes) -> None:
    """Plain numbers on both axes, and a legend."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=INK)


def _short(value: float) -> str:
    """A thousand is 1k, a million 1M."""
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{sign}"
    return f"{value:g}"
