"""How the figures of the benchmarks look, and how they are written: inline SVG or a small PNG."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from laplace_metric.plots import INK, inline_svg

SMALL = 8
DPI, COLOURS = 110, 128


def panels(n: int, width: float, height: float, columns: int = 0) -> tuple[Figure, list[Axes]]:
    """A figure of n panels, each of this size in inches, ``columns`` (default: all) a line."""
    columns = columns or n
    rows = -(-n // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[:n]:
        quiet(axes)
    for axes in grid[n:]:
        axes.set_axis_off()
    return figure, grid[:n]


def quiet(axes: Axes) -> None:
    """A faint grid, no box, small ticks, everything in ink."""
    axes.set_facecolor("none")
    axes.grid(color=INK, alpha=0.12, lw=0.8)
    axes.tick_params(which="both", colors=INK, labelsize=SMALL)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def legend_below(figure: Figure, columns: int, size: float = SMALL + 1, **options: Any) -> None:
    """One legend under all panels."""
    options = {"fontsize": size, "frameon": False, "labelcolor": INK, **options}
    figure.legend(loc="outside lower center", ncols=columns, **options)


def svg_plot(figure: Figure, prefix: str, description: str) -> Markup:
    """The figure inside a page, its letters as text.

    Parameters
    ----------
    prefix : str
        Of the ids, unique on the page.
    description : str
        Read out instead of the figure.
    """
    with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana"]}):
        svg = str(inline_svg(figure, prefix, description))
    return Markup(_compact(svg.replace("<svg", '<svg class="plot"', 1)))


def _compact(svg: str) -> str:
    """Without line breaks, ids that nothing refers to, and hundredths of a pixel."""
    svg = re.sub(r"\s*\n\s*", " ", svg)
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    used = set(re.findall(r"#([\w-]+)", svg))
    return re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)


def save_png(figure: Figure, path: Path) -> None:
    """A PNG with a palette: a third of the size, and no eye sees it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI, facecolor="white")
    image = Image.open(buffer).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
