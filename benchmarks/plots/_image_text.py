"""What the learnt variance of images and texts follows, with the drawings themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.plots._style import HEAD, SMALL, WIDTH, legend_below, legends_of, panels, titled
from laplace_metric.plots._style import INK, STYLES

EACH = 10
"""Texts at either end."""
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
    figure, grid = panels(2 * len(groups), WIDTH / 2, 3.4, columns=2)
    for group, style, (points, names) in zip(
        groups, STYLES, zip(grid[::2], grid[1::2], strict=True), strict=False
    ):
        jitter = np.random.default_rng(0).uniform(0.88, 1.13, len(group.images))
        points.scatter(group.trace, group.images * jitter, s=9, color=style.colour, alpha=0.4, lw=0)
        points.set(xscale="log", yscale="log", xlabel="learnt variance of a keyword (trace)")
        points.set_ylabel("drawings that it names")
        low, high = rank_interval(group.spearman, len(group.texts))
        titled(
            points,
            f"{len(group.texts):,} {group.title}\nSpearman {group.spearman:.2f} "
            f"(95 %: {low:.2f} to {high:.2f})",
        )
        points.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
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
    axes.set_xlabel("learnt variance (trace)")
    titled(axes, f"the {n} widest and the {n} narrowest\n(drawings that they name)")
    axes.grid(visible=False, axis="y")


def rank_interval(rho: float, n: int) -> tuple[float, float]:
    """95 % interval of a Spearman correlation of n pairs; of three, or of order alone, all.

        tanh(atanh(rho) +- 1.96 sqrt((1 + rho^2 / 2) / (n - 3)))

    Bonett & Wright 2000, *Sample size requirements for estimating Pearson, Kendall and Spearman
    correlations*.

    Examples
    --------
    >>> [round(end, 3) for end in rank_interval(0.5, 103)]
    [0.329, 0.639]
    """
    if n <= 3 or not abs(rho) < 1:
        return -1.0, 1.0
    half = 1.96 * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)


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


def strips_plot(strips: Sequence[ImageStrip], title: str, height: float, lines: int = 1) -> Figure:
    """A row a strip, each image with its caption of at most ``lines`` lines below."""
    columns = max(len(strip.images) for strip in strips)
    size = WIDTH, height * len(strips) + 0.35
    figure = Figure(figsize=size)
    bottom = (0.05 + 0.16 * lines) / size[1]
    grid = figure.subplots(
        len(strips), columns, squeeze=False,
        gridspec_kw={"left": 0.01, "right": 0.99, "top": 1 - 0.62 / size[1], "bottom": bottom,
                     "wspace": 0.08, "hspace": 0.55},
    )  # fmt: skip
    figure.suptitle(title, x=0.01, y=1 - 0.08 / size[1], ha="left", va="top", fontsize=HEAD,
                    fontweight="bold", color=INK)  # fmt: skip
    for strip, row in zip(strips, grid, strict=True):
        for axes in row:
            axes.set_axis_off()
        row[0].annotate(strip.title, (0, 1.06), xycoords="axes fraction", fontsize=SMALL + 1,
                        color=INK, annotation_clip=False)  # fmt: skip
        for axes, image, caption in zip(row, strip.images, strip.captions, strict=False):
            axes.imshow(image)
            axes.text(0.5, -0.05, caption, transform=axes.transAxes, ha="center", va="top",
                      fontsize=SMALL, color=INK)  # fmt: skip
    return figure


def severity_plot(curves: dict[str, dict[str, Sequence[float]]]) -> Figure:
    """A panel for what is done to images: numbers by level, as shares of their own range."""
    figure, grid = panels(len(curves), WIDTH / len(curves), 2.7, sharey=True)
    for axes, (title, lines) in zip(grid, curves.items(), strict=True):
        for style, (name, values) in zip(STYLES, lines.items(), strict=False):
            y = np.asarray(values)
            y = (y - y.min()) / max(float(np.ptp(y)), 1e-12)
            axes.plot(y, color=style.colour, ls=style.line, marker=style.marker, ms=5, label=name)
        axes.set(xlabel="level (0: as it is)", xticks=range(len(y)))
        titled(axes, title)
    grid[0].set_ylabel("mean (share of its range)")
    found = legends_of(grid)
    legend_below(figure, len(found), SMALL, handles=list(found.values()), labels=list(found))
    return figure
