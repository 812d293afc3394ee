"""Relevant items by their ids -> judgements of hits.

qrels   query -> ids of all its relevant items, or query -> {id: grade}: what is graded above 0 is
        relevant, what is graded otherwise is not, and what is not graded was not judged
pairs   two views of each item, such as crops or paraphrases: one view asks, the other views are the
        collection, and the relevant item is the one with the query's own id
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

import numpy as np

from laplace_metric._utils.validation import as_array
from laplace_metric.calibration._array_namespace import Array, Flags, Judged
from laplace_metric.calibration._padding import is_no_id
from laplace_metric.calibration.scores._score_numbers import numbers
from laplace_metric.errors import InputError

PAIRS = "pairs"


def judged_by_id(relevant: Any, items: Any, exists: Flags) -> tuple[Judged, Judged, Array]:
    """Return relevance [Q, k] and mated [Q], -1 where not judged, and relevant items [Q] in all.

    Parameters
    ----------
    relevant : qrels, or "pairs"
        Relevance judgements, as for ``calibrate_scores``.
    items : dict of query to ids, or [Q, k] of queries 0, 1, ...
        Ids of the hits, in the order of the scores.
    exists : [Q, k]
        True for each place with a hit.

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
    rows = ids_by_query(items, exists)
    if isinstance(relevant, str) and relevant == PAIRS:
        relevant = {query: (query,) for query in rows}
    if isinstance(relevant, Mapping):
        _check_types("queries of relevant", relevant, "queries of items", rows)
    if not isinstance(relevant, Mapping) or not set(rows) & set(relevant):
        raise InputError(
            f"relevant={relevant!r:.60}: pass 'pairs', or ids by query, {{query: [item, ...]}} or "
            f"{{query: {{item: grade}}}}, of queries such as {next(iter(rows))!r:.40}, which "
            "items= names."
        )
    hits = [item for row in rows.values() for item in row]
    wanted = [item for query in rows for item in _ids_of(relevant.get(query, ()))]
    _check_types("relevant items", wanted, "ids of items", hits)
    judged = np.full(exists.shape, -1, np.int8)
    mated, total = np.full(len(rows), -1, np.int8), np.zeros(len(rows))
    for q, (query, hits) in enumerate(rows.items()):
        if query not in relevant:
            continue
        grades = relevant[query]
        graded = isinstance(grades, Mapping)
        if graded:
            _check_grades(query, grades)
        else:
            grades = dict.fromkeys(_unlike("relevant", query, grades), 1)
        other = -1 if graded else 0
        total[q] = sum(grade > 0 for grade in grades.values())
        mated[q] = 1 if total[q] else other
        found = [int(grades[item] > 0) if item in grades else other for item in hits]
        judged[q, : len(hits)] = found
    return judged, mated, total


def empty_by_id(scores: Any, items: Any, kinds: tuple[str, ...]) -> Any:
    """Return the scores, infinite where the id is that of a place without a hit.

    Parameters
    ----------
    scores : [Q], [Q, k] or [Q, k, S]
        Scores of the hits.
    items : dict of query to ids, or [Q, k]
        Ids of the hits, in the order of the scores.
    kinds : S of "similarity" | "distance" | "score"
        Meaning of the scores of each scorer.
    """
    lists = [*items.values()] if isinstance(items, Mapping) else items
    if not isinstance(items, Mapping) and (ids := as_array("items", items)).dtype.kind in "iuf":
        empty = np.argwhere((ids == -1) | (ids != ids))
    else:
        empty = np.array(
            [
                (q, place)
                for q, row in enumerate(lists)
                for place, item in enumerate(_ids_of(row))
                if is_no_id(item)
            ],
            dtype=int,
        ).reshape(-1, 2)
    if not len(empty):
        return scores
    changed = numbers("scores", scores).copy()
    fits = (empty[:, 0] < len(changed)) & (empty[:, 1] < (changed.shape[1:2] or (1,))[0])
    rows, places = empty[fits].T  # others are named when the ids are counted
    worst = np.where(np.array(kinds) == "distance", np.inf, -np.inf)
    by_place = changed[:, None] if changed.ndim == 1 else changed
    by_place[rows, places] = worst if by_place.ndim == 3 else worst[0]
    return changed


def ids_by_query(items: Any, exists: Flags) -> dict[Any, list[Any]]:
    """Return the ids of the hits of each query, as many as there are scores.

    Raises
    ------
    InputError
        For another number of queries or ids, and an id that stands twice.
    """
    if not isinstance(items, Mapping):
        ids = as_array("items", items)
        ids = ids[:, None] if ids.ndim == 1 and exists.shape[1] == 1 else ids
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
    """Return ids without the places that have none; refuse an id that stands twice."""
    try:
        listed = [item for item in _listed(ids) if not is_no_id(item)]
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


def _check_grades(query: Any, grades: Mapping[Any, Any]) -> None:
    for item, grade in grades.items():
        if isinstance(grade, str) or not isinstance(grade, (Number, np.bool_)) or grade != grade:
            raise InputError(
                f"relevant of query {query!r} grades {item!r:.40} as {grade!r:.40}: pass numbers, "
                "above 0 for a relevant item; leave out what was not judged."
            )


def _listed(ids: Any) -> list[Any]:
    """Return a list of ids, or raise ``TypeError``."""
    return [*(ids.tolist() if hasattr(ids, "tolist") else ids)]


def _ids_of(ids: Any) -> list[Any]:
    """Return a list of ids, empty for anything else: reading it raises the error."""
    return _listed(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else []


def _check_types(name: str, ids: Iterable[Any], other: str, others: Iterable[Any]) -> None:
    """Raise ``InputError`` if no id of one kind has the type of any of the other kind."""
    ours, theirs = _types(ids), _types(others)
    if ours and theirs and not set(ours) & set(theirs):
        one, two = (
            " and ".join(f"{kind}, such as {example!r:.40}" for kind, example in found.items())
            for found in (ours, theirs)
        )
        raise InputError(
            f"relevant: {name} are of type {one}, and {other} of type {two}: no id of one equals "
            "an id of the other. Pass both with one type, such as str."
        )


def _types(ids: Iterable[Any]) -> dict[str, Any]:
    """Return types by name, each with an id that has it; numbers are one type, for 3 == 3.0."""
    examples: dict[Any, Any] = {}
    for item in ids:
        examples.setdefault(type(item), item)
    found: dict[str, Any] = {}
    for kind, example in examples.items():
        name = "int" if isinstance(example, Number) else kind.__name__
        found.setdefault("str" if isinstance(example, str) else name, example)
    return found
