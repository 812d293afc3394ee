"""Queries with their neighbours: what a search returned, and how sure it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from laplace_metric._utils.display import as_percent
from laplace_metric._utils.names import one_line
from laplace_metric.errors import InputError
from laplace_metric.plots._decisions import decision_keys, decision_of, fade, mark
from laplace_metric.plots._shown_figure import ShownFigure
from laplace_metric.plots._style import INK, STYLES

ImagesOrTexts = Tensor | Sequence[Any]
"""Images or texts, one an entry."""
CELL, FONT, NAME, TEXT = (1.4, 1.9), 8, 19, (22, 8)
SURE, UNSURE, NEUTRAL = STYLES[0].colour, STYLES[1].colour, INK
LIKELY = ("frame: a match is more likely than not", "less likely than not")
RIGHT = ("frame: of the query's class", "of another")
NOTES = ("d: distance ± standard deviation", "→: the answer")
LEGEND, WIDE = 0.35, 8
"""Inches below the rows, of each line of the legend; figures as wide have one line."""


def neighbours_plot(
    result: Any,
    queries: ImagesOrTexts,
    items: ImagesOrTexts,
    *,
    truth: Sequence[Any] | Tensor | npt.NDArray[Any] | None = None,
    answers: Any = None,
    rows: int = 8,
    columns: int = 6,
) -> Figure:
    """Plot one row per query with its neighbours, and what colours mean below.

    Parameters
    ----------
    result : ``SearchResult``
        Result of a search of Q queries, with k neighbours each.
    queries, items : images or texts
        All Q queries and all items of the gallery: images [H, W], [C, H, W] or [H, W, C] with
        values in [0, 1] or bytes, or texts.
    truth : labels of the queries [Q] or None
        Labels of the queries: frames then say which neighbours have the query's label. None, the
        default: they say which are more likely to match than not.
    answers : ``Answers`` [Q] or None
        Decisions of a rule about these queries. A sign and a frame then show which are answered;
        what an abstention found is faded. None, the default: no rule decides.
    rows, columns : int
        Largest number of queries, and of neighbours of each. Default: 8 and 6.

    Raises
    ------
    InputError
        For another number of queries, an image of another shape, another number of labels or
        answers, or labels where items have none.
    """
    n_queries, k = result.ids.shape
    if len(queries) != n_queries:
        raise InputError(f"queries has {len(queries)} images for {n_queries} queries.")
    known = None if truth is None else np.asarray(truth)
    if known is not None and result.labels is None:
        raise InputError("truth is given, but the items of this search have no labels.")
    if known is not None and known.shape != (n_queries,):
        raise InputError(f"truth has shape {known.shape} for {n_queries} queries.")
    if answers is not None and len(answers) != n_queries:
        raise InputError(f"answers has {len(answers)} answers for {n_queries} queries.")
    rows, columns = min(rows, n_queries), min(columns, k)
    keys = _keys(result, known, answers)
    width = (columns + 1) * CELL[0]
    lines = 1 if width >= WIDE else len(keys)
    size = width, rows * CELL[1] + LEGEND * (1 + lines) / 2
    figure = ShownFigure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(rows, columns + 1, squeeze=False)
    for i in range(rows):
        _query(grid[i, 0], result, queries[i], i, known, answers)
        for j in range(columns):
            _neighbour(grid[i, j + 1], result, items, i, j, known)
            if answers is not None and not answers.answered[i]:
                fade(grid[i, j + 1])
    if keys:
        figure.legend(handles=keys, loc="outside lower center", ncols=-(-len(keys) // lines),
                      fontsize=FONT, frameon=False, handlelength=1.2)  # fmt: skip
    return figure


def _keys(result: Any, truth: npt.NDArray[Any] | None, answers: Any) -> list[Artist]:
    """Return the meaning of the colours and signs; nothing before a calibration."""
    decided = [] if answers is None else decision_keys()
    if truth is None and result.match_probability is None:
        return [*decided]
    words = zip((SURE, UNSURE), LIKELY if truth is None else RIGHT, strict=True)
    keys = [Patch(fill=False, ec=colour, lw=1.5, label=word) for colour, word in words]
    return [*decided, *keys, *(Patch(fill=False, ec="none", label=note) for note in NOTES)]


def _query(
    axes: Axes, result: Any, query: Any, i: int, truth: npt.NDArray[Any] | None, answers: Any
) -> None:
    _draw(axes, query)
    unknown = result.unknown is not None and bool(result.unknown[i])
    lines = [] if truth is None else [f"is {_short(truth[i])}"]
    colour = UNSURE if unknown else NEUTRAL
    if answers is not None:
        one, decision = answers[i], decision_of(answers[i].reason)
        label = "answered" if one.label is None else f"→ {_short(one.label)}"
        answer = label if one.answered else "no answer"
        lines += [answer, f"{one.reason or 'probability'} {as_percent(one.probability, 0)}"]
        colour = decision.colour
        mark(axes, decision)
    elif result.label is None or result.label_probability is None or unknown:
        lines.append("unfamiliar" if unknown else "query")
    else:
        lines.append(f"→ {_short(result.label[i])}")
        lines.append(f"probability {as_percent(float(result.label_probability[i]), 0)}")
    lines.append(f"epistemic {float(result.epistemic[i]):+.1f}")
    if result.ambiguity is not None:
        lines.append(f"ambiguity {float(result.ambiguity[i]):.2f}")
    axes.set_title("\n".join(lines), fontsize=FONT, color=colour, parse_math=False)


def _neighbour(
    axes: Axes, result: Any, items: ImagesOrTexts, i: int, j: int, truth: npt.NDArray[Any] | None
) -> None:
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
        lines.append(f"match {as_percent(p, 0)}")
        colour = SURE if p >= 0.5 else UNSURE
    if truth is not None:
        colour = SURE if name == truth[i] else UNSURE
    axes.set_title("\n".join(lines), fontsize=FONT, color=colour, parse_math=False)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1.5)


def _short(name: Any) -> str:
    """Return at most two lines to stand above one image."""
    return _wrapped(str(name), NAME, 2)


def _wrapped(text: str, width: int, most: int) -> str:
    """Break a text into lines, between words or behind an underscore."""
    lines = textwrap.wrap(text.replace("_", "_ "), width, max_lines=most, placeholder="…")
    return "\n".join(one_line(line).replace("_ ", "_") for line in lines)


def _draw(axes: Axes, item: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    if isinstance(item, str):
        axes.text(
            0.5,
            0.5,
            _wrapped(item, *TEXT),
            ha="center",
            va="center",
            fontsize=FONT - 2,
            parse_math=False,
        )
        return
    pixels = _pixels(item)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255 if pixels.dtype == np.uint8 else 1)


def _pixels(item: Any) -> npt.NDArray[Any]:
    """Return the pixels [H, W] or [H, W, 3] of an image."""
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else np.asarray(item)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3):
        raise InputError(f"an image has shape {array.shape}: pass [H, W], [C, H, W] or [H, W, C].")
    return array
