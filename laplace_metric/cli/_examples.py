"""Queries that a report shows with their neighbours, grouped by what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from laplace_metric.cli._answers_table import columns_of
from laplace_metric.cli._source import Source
from laplace_metric.cli._table_files import rows_of
from laplace_metric.search import Index, IndexReport
from laplace_metric.search._report import GuaranteedPrecision

NEIGHBOURS = 5


def asked(
    index: Index, queries: Source, truth: Sequence[Any] | None, batch_size: int
) -> list[dict[str, Any]]:
    """Search every query: its ``name``, true ``label`` or None, ``neighbours`` (``columns_of``)."""
    if not len(queries):
        return []
    result = index.search(queries.batches(batch_size), min(NEIGHBOURS, len(index)))
    rows, found = iter(rows_of(columns_of(result, queries.ids))), []
    for number, name in enumerate(queries.ids):
        positions = result.positions[number].tolist()  # -1: an approximate engine found fewer
        own = [next(rows) for _ in positions]
        near = [row for row, at in zip(own, positions, strict=True) if at >= 0]
        label = None if truth is None else truth[number]
        found.append({"name": name, "label": label, "neighbours": near})
    return found


# What became of the queries: answered rightly or wrongly, abstained, unknown.


SHOWN = 4
"""Queries of a group that are shown."""


def grouped(measures: IndexReport, made: GuaranteedPrecision | None) -> list[dict[str, Any]]:
    """Divide the queries into groups; an empty group is left out.

    The threshold of ``made`` decides which are answered; without one all that are not called
    unknown. Of a group: ``key``,
    ``title``, ``note``, ``n`` and ``places``, the rows to show, spread evenly from the surest to
    the least sure.
    """
    right, called = measures.right, measures.called_unknown
    unknown = torch.zeros_like(right) if called is None else called
    answered = ~unknown if made is None or made.accepted is None else made.accepted
    left = ~answered & ~unknown
    unsure = measures.scores[measures.ranked_by]
    strange_note = ""
    if measures.has_match is not None:
        strange = int((~measures.has_match[unknown]).sum())
        strange_note = f"{strange:,} have no match in the index"
        strange_note = strange_note if strange else "falsely: all have a match"
    parts = (
        ("right", "Answered, right", answered & right, ""),
        ("wrong", "Answered, wrong", answered & ~right, ""),
        ("abstained", "Abstained", left, f"{int(right[left].sum()):,} would have been right"),
        ("unknown", "Unfamiliar", unknown, strange_note),
    )
    groups = []
    for key, title, members, note in parts:
        rows = members.nonzero().flatten()
        rows = rows[unsure[rows].argsort(stable=True)]
        places = [int(rows[place]) for place in evenly(len(rows), SHOWN)]
        if places:
            group = {"key": key, "title": title, "note": note, "n": len(rows), "places": places}
            groups.append(group)
    return groups


def evenly(n: int, most: int) -> list[int]:
    """Return at most so many of n places, both ends among them.

    Examples
    --------
    >>> evenly(10, 4), evenly(3, 4), evenly(7, 1)
    ([0, 3, 6, 9], [0, 1, 2], [0])
    """
    if n <= most:
        return list(range(n))
    return [round(place * (n - 1) / max(1, most - 1)) for place in range(most)]
