"""A picture of queries with their neighbours: what was found, and how sure it is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from laplace_metric.errors import InputError

if TYPE_CHECKING:
    from laplace_metric.search import Pictured, SearchResult

CELL, FONT = (1.35, 1.75), 8
SURE, UNSURE, NEUTRAL = "#0072B2", "#D55E00", "#010203"
"""Blue and vermilion of Okabe & Ito (2008): a match is more likely than not, or is not."""


def picture(
    result: SearchResult, queries: Pictured, items: Pictured, rows: int, columns: int
) -> Figure:
    """See ``SearchResult.picture``."""
    if len(queries) != len(result):
        raise InputError(f"queries has {len(queries)} images for {len(result)} queries.")
    q, k = min(rows, len(result)), min(columns, result.ids.shape[1])
    size = ((k + 1) * CELL[0], q * CELL[1])
    grid = Figure(figsize=size, layout="constrained").subplots(q, k + 1, squeeze=False)
    for i in range(q):
        _draw(grid[i, 0], queries[i])
        _title_query(grid[i, 0], result, i)
        for j in range(k):
            _neighbour(grid[i, j + 1], result, items, i, j)
    figure = grid[0, 0].get_figure()
    assert isinstance(figure, Figure)
    return figure


def _neighbour(axes: Axes, result: SearchResult, items: Pictured, i: int, j: int) -> None:
    position = int(result.positions[i, j])
    if position < 0:
        axes.set_axis_off()
        return
    _draw(axes, items[position])
    name = result.ids[i, j] if result.labels is None else result.labels[i, j]
    distance = f"d {float(result.distance[i, j]):.2f} ± {float(result.distance_sd[i, j]):.2f}"
    lines, colour = [str(name), distance], NEUTRAL
    if result.match_probability is not None:
        p = float(result.match_probability[i, j])
        lines.append(f"match {p:.0%}")
        colour = SURE if p >= 0.5 else UNSURE
    axes.set_title("\n".join(lines), fontsize=FONT, color=colour)
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(1.5)


def _title_query(axes: Axes, result: SearchResult, i: int) -> None:
    lines = ["query", f"uncertainty {float(result.uncertainty[i]):.2g}"]
    unknown = result.unknown
    stranger = unknown is not None and bool(unknown[i])
    lines.append("unknown" if stranger else "")
    axes.set_title("\n".join(lines), fontsize=FONT, color=UNSURE if stranger else NEUTRAL)


def _draw(axes: Axes, item: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    if isinstance(item, str):
        wrapped = "\n".join(textwrap.wrap(item, 18)[:7])
        axes.text(0.5, 0.5, wrapped, ha="center", va="center", fontsize=FONT - 2)
        return
    pixels = _pixels(item)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255 if pixels.dtype == np.uint8 else 1)


def _pixels(item: Any) -> npt.NDArray[Any]:
    """[H, W] or [H, W, 3]."""
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else np.asarray(item)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3):
        raise InputError(f"an image has shape {array.shape}: pass [H, W], [C, H, W] or [H, W, C].")
    return array
