"""Strips of images, each with a line below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from benchmarks.plots._style import HEAD, SMALL, WIDTH
from laplace_metric.plots._style import INK


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
