"""Queries with their neighbours, as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from laplace_metric.cli.report._looks import Look, LookOf
from laplace_metric.cli.report._words import percent
from laplace_metric.cli.sources import Source
from laplace_metric.search import Index, SearchResult

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
