"""What the learnt variance of images and texts follows, with the drawings themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.plots._style import SMALL, panels, quiet
from laplace_metric.plots import INK, STYLES

EACH = 10
"""Texts at either end."""
SPACE = {"left": 0.01, "right": 0.99, "top": 0.93, "bottom": 0.07, "wspace": 0.1, "hspace": 0.45}
TICKS = (0.1, 0.2, 0.3, 0.5, 0.8)


@dataclass(frozen=True)
class TextSizes:
    """Texts of one kind, with the variance that was learnt and the images that each names.

    Parameters
    ----------
    title : str
    texts : M strings
    trace : [M], > 0
    images : [M], at least 1
    spearman : float
    """

    title: str
    texts: Sequence[str]
    trace: Sequence[float]
    images: Sequence[int]
    spearman: float


def generality_plot(groups: Sequence[TextSizes]) -> Figure:
    """A panel a group: images named against the learnt variance, its ends named beside it."""
    figure, grid = panels(2 * len(groups), 4.6, 3.8, columns=2)
    for group, style, (points, names) in zip(
        groups, STYLES, zip(grid[::2], grid[1::2], strict=True), strict=False
    ):
        jitter = np.random.default_rng(0).uniform(0.88, 1.13, len(group.images))
        points.scatter(group.trace, group.images * jitter, s=9, color=style.colour, alpha=0.4, lw=0)
        points.set(xscale="log", yscale="log", xlabel="learnt variance of the text, trace")
        points.set_ylabel("drawings that it names")
        points.set_title(f"{group.title}: Spearman {group.spearman:.2f}", fontsize=SMALL + 2)
        points.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        points.xaxis.set_minor_locator(NullLocator())
        _ends(names, group, style.colour)
    return figure


def _ends(axes: Axes, group: TextSizes, colour: str) -> None:
    order, n = np.argsort(group.trace), min(EACH, len(group.trace) // 2)
    rows = [*order[:n], *order[len(order) - n :]]
    y = [*range(n), *range(n + 1, 2 * n + 1)]
    axes.barh(y, [group.trace[row] for row in rows], color=colour, alpha=0.6)
    labels = [f"{group.texts[row]} ({group.images[row]})" for row in rows]
    axes.set_yticks(y, labels, fontsize=SMALL - 1)
    axes.set_xlabel("learnt variance, trace")
    axes.set_title("narrowest and widest (drawings named)", fontsize=SMALL + 2)
    axes.grid(visible=False, axis="y")


@dataclass(frozen=True)
class ImageStrip:
    """Images in an order, each with a line below.

    Parameters
    ----------
    title : str
    images : n arrays [H, W, 3] in [0, 1]
    captions : n strings
    """

    title: str
    images: Sequence[np.ndarray]
    captions: Sequence[str]


def strips_plot(strips: Sequence[ImageStrip], width: float = 1.15, height: float = 1.5) -> Figure:
    """A row a strip."""
    columns = max(len(strip.images) for strip in strips)
    figure = Figure(figsize=(width * columns, height * len(strips)))
    grid = figure.subplots(len(strips), columns, squeeze=False, gridspec_kw=SPACE)
    for strip, row in zip(strips, grid, strict=True):
        for axes in row:
            axes.set_axis_off()
        row[0].annotate(strip.title, (0, 1.04), xycoords="axes fraction", fontsize=SMALL + 1,
                        color=INK, annotation_clip=False).set_in_layout(False)  # fmt: skip
        for axes, image, caption in zip(row, strip.images, strip.captions, strict=False):
            axes.imshow(image)
            axes.text(0.5, -0.04, caption, transform=axes.transAxes, ha="center", va="top",
                      fontsize=SMALL - 2, color=INK)  # fmt: skip
    return figure


def severity_plot(curves: dict[str, dict[str, Sequence[float]]]) -> Figure:
    """A panel for what is done to images: numbers by level, as shares of their own range."""
    figure, grid = panels(len(curves), 3.2, 2.8)
    for axes, (title, lines) in zip(grid, curves.items(), strict=True):
        quiet(axes)
        for style, (name, values) in zip(STYLES, lines.items(), strict=False):
            y = np.asarray(values)
            y = (y - y.min()) / max(float(np.ptp(y)), 1e-12)
            axes.plot(y, color=style.colour, ls=style.line, marker=style.marker, label=name)
        axes.set_title(title, fontsize=SMALL + 2)
        axes.set_xticks(range(len(y)))
        axes.set_xlabel("level")
    grid[0].set_ylabel("mean over drawings, scaled to 0..1")
    grid[0].legend(frameon=False, fontsize=SMALL)
    return figure
