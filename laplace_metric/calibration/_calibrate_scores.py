"""Judged scores of any search -> match probabilities and what tests them.

Relevant items by their ids -> judgements of hits.

qrels   query -> ids of all its relevant items, or query -> {id: grade}: what is graded above 0 is
        relevant, what is graded otherwise is not, and what is not graded was not judged
pairs   two views of each item, such as crops or paraphrases: one view asks, the other views are the
        collection, and the relevant item is the one with the query's own id
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from laplace_metric._utils.validation import ArrayLike, as_array, as_floats, check_count, check_name
from laplace_metric.calibration._learn import FEW, PARTS
from laplace_metric.calibration._probability import FOLDS
from laplace_metric.calibration._score_model import (
    Array,
    Flags,
    Judged,
    checked_scores,
    evidence_column,
    fit_score_model,
    judgements,
    score_features,
    warn_of_scores,
)
from laplace_metric.calibration._scores import ScoreCalibration
from laplace_metric.errors import InputError, ScoresWarning, callers_line

KINDS = ("similarity", "distance", "score")
LEAST = 2 * FOLDS
"""Queries in each half."""
TAKEN = ("scores", "miss", "open_set_fraction", "classes")
"""Arguments of the calls that take evidence by name."""


def calibrate_scores(
    scores: ArrayLike,
    relevant: ArrayLike | Mapping[Any, Any] | str,
    *,
    items: ArrayLike | Mapping[Any, Any] | None = None,
    kind: str | Sequence[str] = "similarity",
    mated: ArrayLike | None = None,
    total: ArrayLike | None = None,
    evidence: Mapping[str, ArrayLike] | None = None,
    cross_fit: int | None = None,
    seed: int = 0,
) -> ScoreCalibration:
    """Learn from judged hits how probable a match is, and test it on queries that it did not see.

    Parameters
    ----------
    scores : [Q], [Q, k] or [Q, k, S]
        Of the hits of each query, the first hit first, by S scorers. Where a query has fewer hits:
        -inf behind them, inf of distances. [Q]: one hit each, such as of judged pairs.
    relevant : [Q, k], or [Q] of one hit each
        Whether each hit is relevant: booleans, or 1 and 0; -1 where it was not judged. With
        ``items``: qrels, query -> ids of all relevant items, or query -> {id: grade}, where what is
        not graded was not judged; or "pairs", where the relevant item has the query's own id, as
        that of another view has. ``mated`` and ``total`` follow from them.
    items : dict of query to ids, or [Q, k], optional
        Ids of the hits, in the order of ``scores``; the queries of an array are 0, 1, ...
    kind : "similarity" | "distance" | "score", or one per scorer
        Similarities fall and distances rise from hit to hit; "score": larger is better, in any
        order, as of a reranker. Only the first scorer's order is checked.
    mated : [Q] booleans, or 1, 0 and -1, optional
        Whether the collection holds a relevant item, found or not. Default: whether one of the hits
        is; -1, not known, where none is and some are not judged.
    total : [Q], optional
        Relevant items in the collection, for ``keep_relevant``. Default: those among the hits.
    evidence : dict of str to [Q] or [Q, k], optional
        Further columns, such as an uncertainty or the share of a label among the hits.
    cross_fit : int, optional
        0: half of the queries fit, the other half tests, and guarantees are proven. 5: all of them
        test, each by a probability that was fitted without its fifth, and the rule uses one that
        was fitted to all; a precision is then simulated, not proven, and the rest is refused. None:
        5 of fewer than 1,000 queries, else 0; all but a precision is proven by halves then, too.
    seed : int
        Of the split.

    Raises
    ------
    InputError
        For shapes that do not fit, NaN, scores that are not sorted as ``kind`` says, fewer than 20
        queries, ids that stand twice, and hits that are all relevant or all irrelevant.

    Warns
    -----
    FewQueriesWarning
        If fewer than 5 queries of the fitting half have a relevant hit first, or an irrelevant one.
    ScoresWarning
        If hits are not judged: they are left out. If relevant hits have lower scores than others,
        of distances larger ones.

    Examples
    --------
    >>> g = np.random.default_rng(0)
    >>> distance = np.sort(g.gamma(3.0, size=(400, 10)), 1)
    >>> relevant = g.random((400, 10)) < np.exp(-distance)
    >>> calibration = calibrate_scores(distance, relevant, kind="distance")
    >>> bool((np.diff(calibration.probability([np.arange(10.0)])) <= 0).all())
    True
    """
    kinds = tuple(kind) if isinstance(kind, (list, tuple)) else (kind,)
    for name in kinds:
        check_name("kind", name, KINDS)
    values, exists = checked_scores(scores, kinds)
    if items is not None:
        relevant, known, count = judged_by_id(relevant, items, exists)
        mated, total = known if mated is None else mated, count if total is None else total
    elif isinstance(relevant, (Mapping, str)):
        raise InputError(f"relevant={relevant!r:.60} takes items=, the ids of the hits.")
    judged = judgements("relevant", relevant, exists.shape)
    judged = np.where(exists, judged, np.int8(0)).astype(np.int8)
    found = (judged == 1).any(1)
    if mated is None:
        unknown = ~found & (judged < 0).any(1)
        has_match = np.where(unknown, -1, found).astype(np.int8)
    else:
        has_match = judgements("mated", mated, found.shape)
        if wrong := int((found & (has_match == 0)).sum()):
            raise InputError(f"mated is 0 for {wrong} queries with a relevant hit: make it 1.")
    counted = (judged == 1).sum(1).astype(np.float64)
    if total is not None:
        given = as_floats("total", total)
        if given.shape != counted.shape or not np.isfinite(given).all() or (given < counted).any():
            raise InputError("total: pass [Q] counts, at least the relevant hits of each query.")
        counted = given
    if missing := int((judged < 0).sum()):
        warnings.warn(
            f"{missing:,} of {int(exists.sum()):,} hits are not judged (-1): they are left out.",
            ScoresWarning,
            stacklevel=callers_line(),
        )
    if cross_fit and check_count("cross_fit", cross_fit, 2) > LEAST:
        raise InputError(f"cross_fit={cross_fit}: pass 0, or from 2 to {LEAST} parts.")
    columns = {} if evidence is None else evidence
    if not isinstance(columns, Mapping) or not all(
        isinstance(name, str) and name not in TAKEN for name in columns
    ):
        raise InputError(
            f"evidence={columns!r:.60}: pass columns by their names, {{'age': [...]}}, other than "
            f"{', '.join(TAKEN)}."
        )
    extra = [evidence_column(name, column, exists) for name, column in columns.items()]
    features = score_features(values, exists, extra)
    order = np.random.default_rng(check_count("seed", seed, 0)).permutation(len(values))
    if len(values) < 2 * LEAST:
        raise InputError(f"{len(values)} queries to calibrate on: pass at least {2 * LEAST}.")

    def tested_by(parts: int) -> ScoreCalibration:
        """Fit to all, and test in so many parts; 0: fit to one half, and test by the other."""
        split = np.array_split(order, parts or 2)
        fitted, tested = (order, order) if parts else split
        chosen, losses, model = fit_score_model(
            features[fitted], judged[fitted], exists[fitted], len(kinds)
        )
        probability = model(features)
        for part in split if parts else ():
            rest = np.setdiff1d(order, part)
            other = fit_score_model(features[rest], judged[rest], exists[rest], len(kinds))[2]
            probability[part] = other(features[part])
        probability = np.where(exists, probability, 0.0)
        return ScoreCalibration(
            kinds,
            values.shape[1],
            tuple(columns),
            chosen,
            losses,
            model,
            held_out=probability[tested],
            relevant=judged[tested],
            mated=has_match[tested],
            total=counted[tested],
            grid=np.empty(0) if parts else probability[fitted, 0],
            unseen=np.empty(0),
            unseen_class=np.empty(0),
        )

    both = cross_fit is None and len(order) < FEW
    found = tested_by(PARTS if both else cross_fit or 0)
    fitted = order[: -(-len(order) // 2)] if len(found.grid) else order
    warn_of_scores(features[fitted, :, 0], np.where(exists, judged, -1)[fitted])
    if both:
        with suppress(InputError):  # one half may have hits of one kind only
            found = replace(found, halves=tested_by(0))
    return found


# Relevant items by their ids -> judgements of hits.

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
