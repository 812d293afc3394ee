"""What became of the queries: answered rightly or wrongly, abstained, unknown."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.search import MATCH, IndexReport

SHOWN = 4
"""Queries of a group that are shown."""


@dataclass(frozen=True)
class QueryGroup:
    """Queries that had the same fate.

    Parameters
    ----------
    key : "right" | "wrong" | "abstained" | "unknown"
    title, note : str
    n : int
    rows : tuple of int
        Those to show: spread evenly from the surest to the least sure.
    """

    key: str
    title: str
    note: str
    n: int
    rows: tuple[int, ...]


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
