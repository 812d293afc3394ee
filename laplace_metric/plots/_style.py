"""Style of every figure, and figures as SVG inside a page.

Nothing global is touched: no pyplot, no rcParams. Series differ in colour (Okabe & Ito 2008, safe
for colour-blind readers), line style and marker. Ink has one colour, `INK`, that a web page may
replace by its own text colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from laplace_metric.errors import InputError

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
    """One style a series.

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
    """Percent signs on the axes named in ``percent``, a legend; the figure of ``axes``."""
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in percent:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
    axes.legend(fontsize=FONT - 1, frameon=False, labelcolor=INK)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return figure


def svg_of(figure: Figure) -> str:
    """The figure as SVG with a transparent ground, letters as outlines (no font is needed)."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline_svg(figure: Figure, prefix: str, description: str) -> Markup:
    """An ``<svg>`` to stand inside a page.

    Ids get ``prefix`` and a running number, so that figures on one page do not share any, and
    the same figure always gives the same text. `INK` becomes ``currentColor``.

    Parameters
    ----------
    figure : Figure
    prefix : str
        Unique on the page.
    description : str
        Read out instead of the figure.
    """
    svg = svg_of(figure)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    ids = {old: f"{prefix}-{i}" for i, old in enumerate(re.findall(r'\bid="([^"]+)"', svg))}
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{ids[m[1]]}"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + ids[m[2]], svg)
    svg = svg.replace(INK, "currentColor")
    size = r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt"|width="[\d.]+pt"'
    head, rest = svg.split(">", 1)
    head = re.sub(size, "", head)
    return Markup(f'{head} role="img" aria-label="{escape(description)}">{rest}')


# A figure that a notebook shows.


class ShownFigure(Figure):
    """A matplotlib figure that draws itself as the last value of a notebook's cell.

    Without ``%matplotlib inline`` a notebook knows figures of pyplot alone, and says of others
    ``<Figure size 420x320 with 1 Axes>``.

    Examples
    --------
    >>> ShownFigure(figsize=(1, 1))._repr_png_()[1:4]
    b'PNG'
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()


# An interval for a share that was counted.


Z = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""


def wilson_interval(
    successes: npt.NDArray[Any], n: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """95 % interval of each share: those p whose own test does not reject what was counted.

        |s / n - p| <= z sqrt(p (1 - p) / n),   solved for p:
        (s + z^2 / 2 +- z sqrt(s (n - s) / n + z^2 / 4)) / (n + z^2)

    It never leaves [0, 1] and has a length where all or none succeeded.

    Parameters
    ----------
    successes, n : arrays [B]
        Counts, or means of counts: 0 <= successes <= n, n > 0.

    Returns
    -------
    (low, high) : arrays [B] in [0, 1]

    Notes
    -----
    Wilson (1927), *Probable inference, the law of succession, and statistical inference*.

    Examples
    --------
    >>> low, high = wilson_interval(np.array([0, 5, 10]), np.array([10, 10, 10]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.237, 0.722], [0.278, 0.763, 1.0])
    """
    centre = (successes + Z**2 / 2) / (n + Z**2)
    half = Z * np.sqrt(successes * (n - successes) / n + Z**2 / 4) / (n + Z**2)
    return (centre - half).clip(0, 1), (centre + half).clip(0, 1)
