"""How the figures of the benchmarks look: sizes, panels, titles, the colours of a correlation.

Colours, lines and markers are those of ``laplace_metric.plots``: one palette (Okabe & Ito 2008),
one ink. A figure is at most ``WIDTH`` inches wide, so that its letters keep their size on a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from laplace_metric.plots._style import INK

SMALL, HEAD = 8, 11
"""Points of ticks and legends, and of a title."""
WIDTH = 9.0
"""Inches: 864 px in a browser, the width of a README."""
FAINT: dict[str, Any] = {"color": INK, "alpha": 0.6, "lw": 1.0, "ls": ":"}
"""A line for orientation."""
Rgb = tuple[int, int, int]
ENDS = {-1.0: (178, 84, 26), 0.0: (244, 244, 244), 1.0: (32, 97, 158)}
"""Orange to grey to blue, told apart by every common kind of colour blindness."""


def panels(
    n: int, width: float, height: float, columns: int = 0, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of n panels, each of this size in inches, ``columns`` (default: all) a line."""
    columns = columns or n
    rows = -(-n // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in grid[:n]:
        quiet(axes)
    for axes in grid[n:]:
        axes.set_axis_off()
    return figure, grid[:n]


def quiet(axes: Axes) -> None:
    """A faint grid, no box, small ticks, everything in ink."""
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(color=INK, alpha=0.12, lw=0.8)
    axes.tick_params(which="both", colors=INK, labelsize=SMALL)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
        text.set_fontsize(SMALL + 1)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def headed(figure: Figure, title: str, note: str = "") -> Figure:
    """The question that a figure answers, on top of it, and what else to know below that.

    The figure grows by the height of both.
    """
    width, height = figure.get_size_inches()
    room = 0.30 + (0.155 * (note.count("\n") + 1) + 0.05 if note else 0.0)
    figure.set_size_inches(width, height + room)
    top, engine = height + room, figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, height / top))  # type: ignore[call-arg]
    look: dict[str, Any] = {"color": INK, "va": "top"}
    figure.text(0.01, 1 - 0.07 / top, title, fontsize=HEAD, fontweight="bold", **look)
    figure.text(0.01, 1 - 0.31 / top, note, fontsize=SMALL, **look)
    return figure


def titled(axes: Axes, text: str) -> None:
    """The title of one panel."""
    axes.set_title(text, fontsize=SMALL + 2, color=INK)


def legend_below(figure: Figure, columns: int, size: float = SMALL + 1, **options: Any) -> None:
    """One legend under all panels."""
    options = {"fontsize": size, "frameon": False, "labelcolor": INK, **options}
    figure.legend(loc="outside lower center", ncols=columns, **options)


def legends_of(grid: Sequence[Axes]) -> dict[str, Artist]:
    """Every label of all panels once, with what it stands for."""
    found: dict[str, Artist] = {}
    for axes in grid:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return found


def diverging(value: float) -> Rgb:
    """Colour of a correlation, -1 to 1.

    Examples
    --------
    >>> diverging(0.0), diverging(-2.0)
    ((244, 244, 244), (178, 84, 26))
    """
    value = min(1.0, max(-1.0, value))
    middle, end = ENDS[0.0], ENDS[math.copysign(1.0, value)]
    red, green, blue = (round(m + abs(value) * (e - m)) for m, e in zip(middle, end, strict=True))
    return red, green, blue


def diverging_map() -> LinearSegmentedColormap:
    """The same colours for matplotlib."""
    stops = [tuple(c / 255 for c in ENDS[value]) for value in sorted(ENDS)]
    return LinearSegmentedColormap.from_list("correlation", stops, N=256)


def letters_on(ground: Rgb) -> str:
    """Black or white, whichever stands out more."""
    linear = [(c / 255) ** 2.2 for c in ground]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if light > 0.18 else "#fff"
