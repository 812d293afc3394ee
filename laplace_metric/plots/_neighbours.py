"""Queries with their neighbours: what a search returned, and how sure it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from laplace_metric.errors import InputError

ImagesOrTexts = Tensor | Sequence[Any]
"""Images or texts, one an entry."""
CELL, FONT, NAME = (1.4, 1.9), 8, 19
SURE, UNSURE, NEUTRAL = "#0072B2", "#D55E00", "#010203"
"""Blue and vermilion of Okabe & Ito (2008): a match is more likely than not, or is not."""


class RankedNeighbours(Protocol):
    """The k neighbours of Q queries, as ``SearchResult`` has them."""

    @property
    def positions(self) -> Tensor:
        """Rows of the items [Q, k]; -1 where there is none."""

    @property
    def ids(self) -> npt.NDArray[Any]:
        """[Q, k]."""

    @property
    def labels(self) -> npt.NDArray[Any] | None:
        """[Q, k], if items have any."""

    @property
    def distance(self) -> Tensor:
        """[Q, k]."""

    @property
    def distance_sd(self) -> Tensor:
        """Its standard deviation [Q, k]."""

    @property
    def match_probability(self) -> Tensor | None:
        """[Q, k], after a calibration."""

    @property
    def label(self) -> npt.NDArray[Any] | None:
        """What the index answers to each query [Q], after a calibration."""

    @property
    def label_probability(self) -> Tensor | None:
        """Of that answer [Q]."""

    @property
    def epistemic(self) -> Tensor:
        """Of the queries [Q]."""

    @property
    def ambiguity(self) -> Tensor | None:
        """Of the labels of each query's neighbours [Q], if items have any."""

    @property
    def unknown(self) -> Tensor | None:
        """Whether each query [Q] has no match, after a calibration."""


def neighbours_plot(
    result: RankedNeighbours,
    queries: ImagesOrTexts,
    items: ImagesOrTexts,
    *,
    rows: int = 8,
    columns: int = 6,
) -> Figure:
    """One row a query, its neighbours beside it.

    Parameters
    ----------
    result : RankedNeighbours
    queries, items : images [H, W], [C, H, W] or [H, W, C] with values in [0, 1] or bytes, or
        texts, of all Q queries and all items
    rows, columns : int
        Most queries, and most neighbours of each.

    Raises
    ------
    InputError
        For another number of queries, or an image of another shape.
    """
    n_queries, k = result.ids.shape
    if len(queries) != n_queries:
        raise InputError(f"queries has {len(queries)} images for {n_queries} queries.")
    rows, columns = min(rows, n_queries), min(columns, k)
    figure = Figure(figsize=((columns + 1) * CELL[0], rows * CELL[1]), layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(h_pad=0.1)  # type: ignore[call-arg]
    grid = figure.subplots(rows, columns + 1, squeeze=False)
    for i in range(rows):
        _query(grid[i, 0], result, queries, i)
        for j in range(columns):
            _neighbour(grid[i, j + 1], result, items, i, j)
    return figure


def _query(axes: Axes, result: RankedNeighbours, queries: ImagesOrTexts, i: int) -> None:
    _draw(axes, queries[i])
    unknown = result.unknown is not None and bool(result.unknown[i])
    lines = ["unknown" if unknown else "query"]
    if result.label is not None and result.label_probability is not None and not unknown:
        lines = [
            f"→ {_short(result.label[i])}",
            f"probability {float(result.label_probability[i]):.0%}",
        ]
    lines.append(f"epistemic {float(result.epistemic[i]):+.2g}")
    if result.ambiguity is not None:
        lines.append(f"ambiguity {float(result.ambiguity[i]):.2f}")
    axes.set_title("\n".join(lines), fontsize=FONT, color=UNSURE if unknown else NEUTRAL)


def _neighbour(axes: Axes, result: RankedNeighbours, items: ImagesOrTexts, i: int, j: int) -> None:
    position = int(result.positions[i, j])
    if position < 0:
        axes.set_axis_off()
        return
    _draw(axes, items[position])
    name = result.ids[i, j] if result.labels is None else result.labels[i, j]
    distance = f"d {float(result.distance[i, j]):.2f} ± {float(result.distance_sd[i, j]):.2f}"
    lines, colour = [_short(name), distance], NEUTRAL
    if result.match_probability is not None:
        p = float(result.match_probability[i, j])
        lines.append(f"match {p:.0%}")
        colour = SURE if p >= 0.5 else UNSURE
    axes.set_title("\n".join(lines), fontsize=FONT, color=colour)
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(1.5)


def _short(name: Any) -> str:
    """As much of a name as stands above one image."""
    text = str(name)
    return text if len(text) <= NAME else f"{text[: NAME - 1]}…"


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
