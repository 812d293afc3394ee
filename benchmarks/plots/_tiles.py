"""Framed pictures: what is right, what is wrong, and what is not answered.

Narrow, so that the letters can be read on a phone, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from laplace_metric.plots._style import INK, STYLES

FRAMES = {True: STYLES[0].colour, False: STYLES[1].colour, None: "#9a9a9a"}
MARKS = {True: "\u2713 ", False: "\u2717 ", None: ""}
NARROW, LETTERS, FRAME = 5.6, 9, 2.5
"""Width in inches, points of letters and of frames."""
FAINT = 0.35
"""Opacity of a picture that is not answered."""


@dataclass(frozen=True)
class Tiles:
    """Pictures with two answers each: one that is always given, and one that may be withheld.

    Parameters
    ----------
    images : n arrays [H, W, 3] in [0, 1]
    always : n answers, in at most ``lines`` lines
    right : n of whether that answer is right
    then : n strings: the second answer, or why there is none
    frames : n of whether the second answer is right, or None for no answer
    """

    images: Sequence[np.ndarray]
    always: Sequence[str]
    right: Sequence[bool]
    then: Sequence[str]
    frames: Sequence[bool | None]


def tiles_plot(tiles: Tiles, columns: int, words: Mapping[Any, str]) -> Figure:
    """The pictures, framed by their second answer, with what the frames mean below."""
    rows = -(-len(tiles.images) // columns)
    figure = Figure(figsize=(NARROW, rows * 1.36 + 0.45), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid:
        _bare(axes)
    for axes, image, always, right, then, frame in zip(
        grid, tiles.images, tiles.always, tiles.right, tiles.then, tiles.frames, strict=False
    ):
        axes.imshow(image, alpha=FAINT if frame is None else 1)
        axes.spines[:].set(visible=True, color=FRAMES[frame], linewidth=FRAME)
        look: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": LETTERS,
                                "transform": axes.transAxes}  # fmt: skip
        axes.text(0.5, -0.06, MARKS[right] + always, color=FRAMES[right], **look)
        below = -0.06 - 0.18 * (1 + always.count("\n"))
        axes.text(0.5, below, then, color=INK if frame is None else FRAMES[frame],
                  fontweight="normal" if frame is None else "bold", **look)  # fmt: skip
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(h_pad=0.07)  # type: ignore[call-arg]
    _keys(figure, words)
    return figure


@dataclass(frozen=True)
class Neighbours:
    """Of some queries their neighbours by one ranking.

    Parameters
    ----------
    title : str
    images : Q lists of k arrays [H, W] in [0, 1], nearest first
    right : Q lists of whether each is of the query's class
    """

    title: str
    images: Sequence[Sequence[np.ndarray]]
    right: Sequence[Sequence[bool]]


def neighbours_plot(
    queries: Sequence[np.ndarray], rankings: Sequence[Neighbours], words: Mapping[Any, str]
) -> Figure:
    """A row a query: itself, then its neighbours by each ranking."""
    k = len(rankings[0].images[0])
    columns = 1 + len(rankings) * (k + 1)
    widths = [1.0, *([0.35, *[1.0] * k] * len(rankings))]
    side = NARROW / sum(widths)
    figure = Figure(figsize=(NARROW, len(queries) * (side + 0.12) + 0.65), layout="constrained")
    grid = figure.subplots(len(queries), columns, squeeze=False,
                           gridspec_kw={"width_ratios": widths})  # fmt: skip
    for axes in grid.flat:
        _bare(axes)
    grid[0, 0].set_title("query", fontsize=LETTERS, color=INK)
    for row, query in zip(grid, queries, strict=True):
        row[0].imshow(query, cmap="gray")
    for place, ranking in enumerate(rankings):
        first = 2 + place * (k + 1)
        _above(grid[0, first], ranking.title)
        for row, images, right in zip(grid, ranking.images, ranking.right, strict=True):
            for axes, image, of_class in zip(row[first : first + k], images, right, strict=True):
                axes.imshow(image, cmap="gray")
                axes.spines[:].set(visible=True, color=FRAMES[of_class], linewidth=FRAME)
    _keys(figure, words)
    return figure


def _above(axes: Axes, text: str) -> None:
    """Write a title over a column and those to its right, none of which it widens."""
    axes.annotate(text, (0, 1), (0, 6), "axes fraction", "offset points", fontsize=LETTERS,
                  color=INK, annotation_clip=False, in_layout=False)  # fmt: skip


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _keys(figure: Figure, words: Mapping[Any, str]) -> None:
    keys = [Patch(fill=False, ec=FRAMES[k], lw=FRAME, label=w) for k, w in words.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize=LETTERS,
                  frameon=False, handlelength=1.2, labelcolor=INK, columnspacing=1.2)  # fmt: skip
