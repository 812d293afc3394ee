"""Style of every figure.

Nothing global is changed: no pyplot, no rcParams. Series differ in colour (Okabe & Ito 2008, safe
for colour-blind readers), line style and marker. Ink has one colour, `INK`, that a web page may
replace by its own text colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from laplace_metric.errors import InputError
from laplace_metric.plots._shown_figure import ShownFigure

INK = "#010203"
SIZE = (4.2, 3.2)
FONT = 10


@dataclass(frozen=True)
class Style:
    """Style of one series, distinct in three ways at once."""

    colour: str
    line: str
    marker: str
    hatch: str


STYLES = (
    Style("#0072B2", "--", "o", "//"),
    Style("#D55E00", "-.", "s", "\\\\"),
    Style("#009E73", "-", "^", ".."),
    Style("#CC79A7", ":", "D", "xx"),
    Style("#E69F00", (0, (5, 1, 1, 1, 1, 1)), "v", "++"),  # type: ignore[arg-type]
    Style("#56B4E9", (0, (8, 2)), "P", "oo"),  # type: ignore[arg-type]
)


def styles_of(series: Mapping[str, object]) -> tuple[Style, ...]:
    """Return one style a series.

    Raises
    ------
    InputError
        For no series, or more than there are styles.
    """
    if not 0 < len(series) <= len(STYLES):
        raise InputError(f"{len(series)} series to plot: give 1 to {len(STYLES)}.")
    return STYLES[: len(series)]


def prepare(axes: Axes | None, x: str, y: str) -> Axes:
    """Axes with quiet frames and labels, on a new figure unless given."""
    if axes is None:
        axes = ShownFigure(figsize=SIZE, layout="constrained").add_subplot()
    axes.set_facecolor("none")
    axes.set_xlabel(x, color=INK, fontsize=FONT)
    axes.set_ylabel(y, color=INK, fontsize=FONT)
    axes.tick_params(which="both", colors=INK, labelsize=FONT - 1)
    axes.grid(color=INK, alpha=0.12, lw=0.8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    return axes


def finish_figure(axes: Axes, percent: str) -> Figure:
    """Set percent signs on the axes named in ``percent``, and a legend; return the figure."""
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in percent:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
    axes.legend(fontsize=FONT - 1, frameon=False, labelcolor=INK)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return figure
