"""Draws of embeddings of two numbers around their means, among items of several classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.plots._tiles import NARROW
from laplace_metric.plots._style import INK, STYLES

PALE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f", "#8c564b",
        "#b5a900", "#4b0082")  # fmt: skip
"""Colours of items, by class."""
LETTERS = 10
DRAWN = (STYLES[0], STYLES[1], STYLES[2])


@dataclass(frozen=True)
class DrawnInput:
    """An input and where draws put it.

    Parameters
    ----------
    title : str
    image : array [H, W] in [0, 1]
    mean : array [2]
    draws : array [S, 2]
    """

    title: str
    image: np.ndarray[Any, Any]
    mean: np.ndarray[Any, Any]
    draws: np.ndarray[Any, Any]


def draws_plot(
    drawn: Sequence[DrawnInput],
    items: np.ndarray[Any, Any],
    labels: Sequence[str],
    classes: Sequence[str],
) -> Figure:
    """Images on the left, and next to them their draws among the items.

    Parameters
    ----------
    drawn : the inputs, up to three
    items : array [N, 2], embeddings of items
    labels : N classes of the items
    classes : names, which are written outside their items; near ones as one label
    """
    figure = Figure(figsize=(NARROW, 5.0), layout="constrained")
    rows: Any = [[f"image {i}", "all"] for i in range(len(drawn))]
    grid = figure.subplot_mosaic(rows, width_ratios=[1, 2.3])
    axes, names = grid["all"], np.array(labels)
    for name, colour in zip(classes, PALE, strict=False):
        x, y = items[names == name].T
        axes.scatter(x, y, s=5, color=colour, alpha=0.22, lw=0)
    for i, (one, style) in enumerate(zip(drawn, DRAWN, strict=False)):
        picture = grid[f"image {i}"]
        picture.imshow(one.image, cmap="gray")
        picture.set(xticks=[], yticks=[])
        picture.spines[:].set(visible=True, color=style.colour, linewidth=2.5)
        picture.set_xlabel(one.title, fontsize=LETTERS, color=style.colour)
        axes.scatter(one.draws[:, 0], one.draws[:, 1], s=5, color=style.colour, alpha=0.6, lw=0)
        axes.scatter(
            one.mean[0],
            one.mean[1],
            s=50,
            color=style.colour,
            marker="X",
            edgecolors="white",
            zorder=3,
        )
    centres = {name: np.median(items[names == name], 0) for name in classes if name in names}
    reach, middle = float(np.ptp(items, axis=0).max()), np.median(items, axis=0)
    for group, place in together(centres, 0.08 * reach):
        place = place + 0.15 * reach * (place - middle) / np.linalg.norm(place - middle)
        axes.text(place[0], place[1], ",\n".join(group), fontsize=LETTERS, color=INK, ha="center",
                  va="center", zorder=4)  # fmt: skip
    axes.margins(0.15)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color=INK, alpha=0.3)
    axes.set_aspect("equal", adjustable="datalim")
    return figure


def together(
    centres: Mapping[str, np.ndarray[Any, Any]], near: float
) -> list[tuple[list[str], np.ndarray[Any, Any]]]:
    """Return groups of names whose places are near that of the first, and their mean place."""
    left, groups = dict(centres), []
    while left:
        first = next(iter(left.values()))
        group = [name for name, at in left.items() if np.linalg.norm(at - first) <= near]
        groups.append((group, np.mean([left.pop(name) for name in group], axis=0)))
    return groups
