"""Relevant items by their ids -> judgements of hits.

qrels   query -> ids of all its relevant items, or query -> {id: grade}: what is graded above 0 is
        relevant, what is graded otherwise is not, and what is not graded was not judged
pairs   two views of each item, such as crops or paraphrases: one view asks, the other views are the
        collection, and the relevant item is the one with the query's own id
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from laplace_metric._utils.validation import as_array
from laplace_metric.calibration._score_model import Array, Flags, Judged
from laplace_metric.errors import InputError

PAIRS = "pairs"


def judged_by_id(relevant: Any, items: Any, exists: Flags) -> tuple[Judged, Judged, Array]:
    """Return relevance [Q, k] and mated [Q], -1 where not judged, and relevant items [Q] in all.

    Parameters
    ----------
    relevant : qrels, or "pairs"
    items : dict of query to ids, or [Q, k] of queries 0, 1, ...
        The hits, in the order of the scores.
    exists : [Q, k]

    Raises
    ------
    InputError
        For other types and lengths, an id that stands twice, and queries without any judgement.

    Examples
    --------
    >>> exists = np.ones((2, 2), bool)
    >>> items = {"a": ["x", "y"], "b": ["y", "x"]}
    >>> judged, mated, total = judged_by_id({"a": ["x", "z"], "b": []}, items, exists)
    >>> judged.tolist(), mated.tolist(), total.tolist()
    ([[1, 0], [0, 0]], [1, 0], [2.0, 0.0])
    """
    rows = _rows(items, exists)
    if isinstance(relevant, str) and relevant == PAIRS:
        relevant = {query: (query,) for query in rows}
    if not isinstance(relevant, Mapping) or not set(rows) & set(relevant):
        raise InputError(
            f"relevant={relevant!r:.60}: pass 'pairs', or ids by query, {{query: [item, ...]}}, of "
            f"queries such as {next(iter(rows))!r:.40}, which items= names."
        )
    judged = np.full(exists.shape, -1, np.int8)
    mated, total = np.full(len(rows), -1, np.int8), np.zeros(len(rows))
    for q, (query, hits) in enumerate(rows.items()):
        if query not in relevant:
            continue
        grades = relevant[query]
        graded = isinstance(grades, Mapping)
        if not graded:
            grades = dict.fromkeys(_unlike("relevant", query, grades), 1)
        other = -1 if graded else 0
        total[q] = sum(grade > 0 for grade in grades.values())
        mated[q] = 1 if total[q] else other
        found = [int(grades[item] > 0) if item in grades else other for item in hits]
        judged[q, : len(hits)] = found
    return judged, mated, total


def _rows(items: Any, exists: Flags) -> dict[Any, list[Any]]:
    """Ids of the hits of each query, as many as there are scores."""
    if not isinstance(items, Mapping):
        ids = as_array("items", items)
        if ids.shape != exists.shape:
            raise InputError(f"items has shape {ids.shape}: pass {exists.shape}, or ids by query.")
        items = {q: row[there] for q, (row, there) in enumerate(zip(ids, exists, strict=True))}
    if len(items) != len(exists):
        raise InputError(f"items has {len(items):,} queries and scores {len(exists):,}.")
    rows = {query: _unlike("items", query, hits) for query, hits in items.items()}
    for (query, hits), n in zip(rows.items(), exists.sum(1), strict=True):
        if len(hits) != n:
            raise InputError(f"items of query {query!r} are {len(hits)} but {n} have a score.")
    return rows


def _unlike(name: str, query: Any, ids: Any) -> list[Any]:
    """A list of ids, none of them twice."""
    try:
        listed = ids.tolist() if isinstance(ids, np.ndarray) else [*ids]
        counts = Counter(listed)
        if isinstance(ids, str):
            raise TypeError("text")
    except TypeError as error:
        raise InputError(
            f"{name} of query {query!r} is {ids!r:.60}: pass a list of ids."
        ) from error
    for item, count in counts.items():
        if count > 1:
            raise InputError(f"{name} of query {query!r} holds {item!r} {count} times: keep one.")
    return listed
