"""Thumbnails and excerpts of queries and items, where the data are still there."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from laplace_metric.cli._gallery import LoadedIndex, excerpt
from laplace_metric.cli._output import Reporter
from laplace_metric.cli._sources import IMAGES, TEXTS, Source, path_below, root_of
from laplace_metric.cli.report._verdict import percent
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError, LaplaceMetricError
from laplace_metric.search import Index, IndexReport, SearchResult
from laplace_metric.search._report import MATCH

SIDE = 112
"""Longest side of a picture in pixels; a smaller image stays as it is."""
SMALL = 64
"""Up to here a picture is PNG, exact; above, JPEG."""
LONGEST = 220
"""Characters of a text; the last says that there are more."""


@dataclass(frozen=True)
class Look:
    """A picture as a data URI, or a text; neither for arrays, and for what is gone."""

    picture: str | None = None
    text: str | None = None
    small: bool = False


LookOf = Callable[[str], Look]
"""Of the item of an id."""


def looks_of_queries(source: Source) -> LookOf:
    """Return the looks of a source that the command line names."""
    if source.kind == IMAGES:
        return lambda name: picture_of_file(root_of(source.path), name)
    return _texts_of(source) if source.kind == TEXTS else lambda _: Look()


def looks_of_items(gallery: LoadedIndex, reporter: Reporter) -> LookOf:
    """Return the looks of the items of an index; empty where its data are unknown, gone or changed.

    A file of the index names these data: images are read below paths of the command line alone, and
    of a table only what it names.
    """
    recipe, origin = gallery.posterior.recipe, gallery.origin
    if origin.data is None or recipe.kind not in (IMAGES, TEXTS):
        return lambda _: Look()
    try:
        if recipe.kind == IMAGES:
            folder = gallery.image_folder()
            if gallery.item_data().is_dir() or not gallery.is_listed():
                return lambda name: picture_of_file(folder, name, inside=True)
        source = gallery.items()
    except (LaplaceMetricError, OSError) as error:
        reporter.note(f"the items are named, not shown: {error}")
        return lambda _: Look()
    known, look = set(source.ids), looks_of_queries(source)
    return lambda name: look(name) if name in known else Look()


def _texts_of(source: Source) -> LookOf:
    rows = {name: row for row, name in enumerate(source.ids)}

    return lambda name: Look(text=excerpt(str(source.read([rows[name]])[0]), LONGEST))


def picture_of_file(folder: Path, name: str, *, inside: bool = False) -> Look:
    """A file below a folder; nothing where it cannot be read, or lies elsewhere and may not."""
    try:
        if inside:
            path_below(folder, name)
        image = Pixels(folder, None, 3).decoded(name)
    except InputError:
        return Look()
    small = max(image.size) <= SMALL
    return Look(picture=picture_uri(image), small=small)


def picture_uri(image: Image.Image) -> str:
    """A data URI of at most ``SIDE`` pixels a side.

    Examples
    --------
    >>> picture_uri(Image.new("RGB", (4, 4)))[:22], picture_uri(Image.new("RGB", (400, 300)))[:23]
    ('data:image/png;base64,', 'data:image/jpeg;base64,')
    """
    image, form = image.copy(), "PNG" if max(image.size) <= SMALL else "JPEG"
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, form, optimize=True, quality=85)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


# Queries with their neighbours, as a page shows them.


NEIGHBOURS = 5


@dataclass(frozen=True)
class Found:
    """A neighbour of a query.

    Parameters
    ----------
    name : str
    label : str or None
    match : str
        Its match probability, or its distance where there is none.
    right : bool or None
        Whether it has the query's label; None where one of them has no label.
    look : Look
    """

    name: str
    label: str | None
    match: str
    right: bool | None
    look: Look


@dataclass(frozen=True)
class Asked:
    """A query, what the index said, and what it found.

    Parameters
    ----------
    name : str
    label : str or None
        The truth.
    unknown : bool or None
        What the index calls it; None without a calibration.
    look : Look
    neighbours : tuple of Found
    """

    name: str
    label: str | None
    unknown: bool | None
    look: Look
    neighbours: tuple[Found, ...]


def asked(
    index: Index,
    queries: Source,
    truth: Sequence[Any] | None,
    looks: tuple[LookOf, LookOf],
    batch_size: int,
) -> list[Asked]:
    """Every query of a source with its nearest items; ``looks`` are of queries and of items."""
    if not len(queries):
        return []
    result = index.search(queries.inputs(batch_size), min(NEIGHBOURS, len(index)))
    return [
        Asked(
            name,
            None if truth is None else str(truth[row]),
            None if result.unknown is None else bool(result.unknown[row]),
            looks[0](name),
            tuple(
                _found(result, row, rank, None if truth is None else truth[row], looks[1])
                for rank in range(result.ids.shape[1])
                if int(result.positions[row, rank]) >= 0
            ),
        )
        for row, name in enumerate(queries.ids)
    ]


def _found(result: SearchResult, row: int, rank: int, truth: Any, look: LookOf) -> Found:
    name = str(result.ids[row, rank])
    label = None if result.labels is None else result.labels[row, rank]
    match = f"distance {float(result.distance[row, rank]):.3g}"
    if result.match_probability is not None:
        match = percent(float(result.match_probability[row, rank]))
    right = None if label is None or truth is None else bool(label == truth)
    return Found(name, None if label is None else str(label), match, right, look(name))


# What became of the queries: answered rightly or wrongly, abstained, unknown.


SHOWN = 4
"""Queries of a group that are shown."""


@dataclass(frozen=True)
class QueryGroup:
    """Queries that had the same fate.

    Parameters
    ----------
    key : "right" | "wrong" | "abstained" | "unknown" | "open_set"
    title, note : str
    n : int
    rows : tuple of int
        Those to show: spread evenly from the surest to the least sure.
    queries : sequence of Asked
        The same with what they found.
    """

    key: str
    title: str
    note: str
    n: int
    rows: tuple[int, ...] = ()
    queries: Sequence[Asked] = ()


def grouped(measures: IndexReport, threshold: float | None) -> tuple[QueryGroup, ...]:
    """Every query in one of the groups; a group of none is left out.

    What is called unknown is not answered; without a threshold all else is.
    """
    right, p, called = measures.right, measures.match_probability, measures.called_unknown
    unknown = torch.zeros_like(right) if called is None else called
    answered = ~unknown if threshold is None or p is None else (p >= threshold) & ~unknown
    unsure = measures.scores.get(MATCH, measures.uncertainty)
    parts = {
        "right": ("Answered, right", answered & right),
        "wrong": ("Answered, wrong", answered & ~right),
        "abstained": ("Abstained", ~answered & ~unknown),
        "unknown": ("Called unknown", unknown),
    }
    return tuple(
        QueryGroup(
            key,
            title,
            _note(key, members, measures),
            int(members.sum()),
            _spread(members, unsure),
        )
        for key, (title, members) in parts.items()
        if bool(members.any())
    )


def _note(key: str, members: Tensor, measures: IndexReport) -> str:
    if key == "abstained":
        return f"{int(measures.right[members].sum()):,} would have been right"
    if key == "unknown" and measures.has_match is not None:
        strange = int((~measures.has_match[members]).sum())
        if not strange:
            return "falsely: all have a match"
        return f"{strange:,} have no match in the index"
    return ""


def _spread(members: Tensor, unsure: Tensor) -> tuple[int, ...]:
    rows = members.nonzero().flatten()
    ordered = rows[unsure[rows].argsort(stable=True)].tolist()
    return tuple(ordered[place] for place in evenly(len(ordered), SHOWN))


def evenly(n: int, most: int) -> list[int]:
    """At most so many of n places, both ends among them.

    Examples
    --------
    >>> evenly(10, 4), evenly(3, 4), evenly(7, 1)
    ([0, 3, 6, 9], [0, 1, 2], [0])
    """
    if n <= most:
        return list(range(n))
    return [round(place * (n - 1) / max(1, most - 1)) for place in range(most)]
