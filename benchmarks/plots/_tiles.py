"""Panels of framed pictures: what is right, what is wrong, and what is not answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.plots._style import SMALL, WIDTH
from laplace_metric.plots._style import INK, STYLES

FRAMES = {True: STYLES[0].colour, False: STYLES[1].colour, None: "#9a9a9a"}
MARKS = {True: "\u2713 ", False: "\u2717 ", None: ""}
FAINT = 0.35
"""Opacity of a picture that is not answered."""


@dataclass(frozen=True)
class Tiles:
    """Pictures of one panel.

    Parameters
    ----------
    title : str
    images : n arrays [H, W, 3] in [0, 1]
    captions : n strings of at most two lines
    right : n of True, False, or None for no answer
    """

    title: str
    images: Sequence[np.ndarray]
    captions: Sequence[str]
    right: Sequence[bool | None]


def tiles_plot(panels: Sequence[Tiles], columns: int, words: Mapping[Any, str]) -> Figure:
    """Panels side by side, with what the frames mean below."""
    rows = -(-max(len(panel.images) for panel in panels) // columns)
    side = WIDTH / len(panels) / columns
    figure = Figure(figsize=(WIDTH, rows * (side + 0.22) + 0.6), layout="constrained")
    parts = figure.subfigures(1, len(panels), squeeze=False, wspace=0.03)[0]
    for part, panel in zip(parts, panels, strict=True):
        part.suptitle(panel.title, fontsize=SMALL + 2, color=INK)
        grid = list(part.subplots(rows, columns, squeeze=False).flat)
        for axes in grid:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, image, caption, right in zip(
            grid, panel.images, panel.captions, panel.right, strict=False
        ):
            axes.imshow(image, alpha=FAINT if right is None else 1)
            axes.spines[:].set(visible=True, color=FRAMES[right], linewidth=2.5)
            text = MARKS[right] + caption + "\n" * (1 - caption.count("\n"))
            axes.set_xlabel(text, fontsize=SMALL - 1, labelpad=3,
                            color=INK if right is None else FRAMES[right])  # fmt: skip
    keys = [Patch(fill=False, ec=FRAMES[k], lw=2.5, label=MARKS[k] + w) for k, w in words.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize=SMALL,
                  frameon=False, handlelength=1.2, labelcolor=INK)  # fmt: skip
    return figure
