"""Judged scores of any search -> match probabilities and what tests them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.validation import ArrayLike, check_count, check_name
from laplace_metric.calibration._array_namespace import Array, Flags, Judged
from laplace_metric.calibration._group_column import read_groups, split_by_group
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration._score_calibration import ScoreCalibration
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.probability._held_out import (
    FEW,
    PARTS,
    fit_and_judge,
    on_answering_scale,
)
from laplace_metric.calibration.probability._match_probability import FOLDS
from laplace_metric.calibration.scores._answer_classes import AnswerClasses, first_labels
from laplace_metric.calibration.scores._copied_scores import copies_among, copies_in_groups
from laplace_metric.calibration.scores._qrels import empty_by_id, ids_by_query, judged_by_id
from laplace_metric.calibration.scores._score_features import (
    checked_scores,
    evidence_column,
    first_hits,
    judgements,
    score_features,
)
from laplace_metric.calibration.scores._score_model import ListModel
from laplace_metric.calibration.scores._score_numbers import numbers
from laplace_metric.calibration.scores._score_scale import ScoreScale
from laplace_metric.calibration.scores._score_warnings import warn_of_scores, warn_of_ties
from laplace_metric.calibration.scores._scored_queries import FUSED, KINDS
from laplace_metric.errors import InputError, ScoresWarning, callers_line

LEAST = 2 * FOLDS
"""Queries in each half."""
TAKEN = ("scores", "kind", "miss", "open_set_fraction", "classes", "labels")
"""Arguments of the calls that take evidence by name."""


@named_keywords
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
    groups: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    seed: int = 0,
) -> ScoreCalibration:
    """Fit match probabilities to judged hits, and test them on queries that the fit did not see.

    The queries have to be independent of each other. Copies, which have equal scores and equal
    judgements, count once: a guarantee is then one of distinct queries. Queries that depend on each
    other in other ways, such as those of one session or near paraphrases, are not noticed, and
    break a guarantee more often than its confidence says: pass ``groups=``, the session of each.

    Places without a hit are no comparisons, neither in the fit nor in tests and reports. Hits with
    equal scores must not be ordered by their relevance: keep the order of the search.

    Parameters
    ----------
    scores : [Q], [Q, k] or [Q, k, S]
        Scores of the hits of each query, the first hit first, by S scorers. If a query has fewer
        hits, -inf stands behind them (inf for distances). The 3.4028235e38, with either sign, that
        FAISS writes there is no hit, too. A hit has a finite score of each scorer. With [Q], each
        query has one hit, as in judged pairs.
    relevant : [Q, k], or [Q] of one hit each
        Relevance of each hit: booleans, or 1 and 0; -1 where it was not judged; any number where
        there is no hit. With ``items``: qrels, query -> ids of all relevant items, or query ->
        {id: grade}, where what is not graded was not judged; or "pairs", where the relevant item
        has the query's own id, as that of another view has. ``mated`` and ``total`` follow from
        them.
    items : dict of query to ids, [Q, k], or None
        Ids of the hits, in the order of ``scores``; the queries of an array are 0, 1, ... An id of
        -1, None or NaN marks a place without a hit. None, the default: ``relevant`` judges places,
        not ids.
    kind : "similarity" | "distance" | "score" | "fused", or one per scorer
        Meaning of the scores: similarities fall and distances rise from hit to hit; a larger
        "score" is better, in any order, as from a reranker; "fused" ones come of the ranks in
        several lists (``integrations.fused_hits``), fall from hit to hit, and mean something for
        the same fusion alone. Only the first scorer's order is checked. Default: "similarity".
    mated : [Q] booleans, or 1, 0 and -1, or None
        Presence of a relevant item in the collection, found or not; -1 for not known. None, the
        default: 1 if one of the hits is relevant; -1 if none is and some are not judged, or if
        there is no hit; else 0.
    total : [Q] or None
        Number of relevant items in the collection, for ``keep_relevant``. None, the default: those
        among the hits.
    evidence : dict of str to [Q] or [Q, k], or None
        Further columns, by name, such as an uncertainty or the share of a label among the hits.
        None, the default: scores alone.
    cross_fit : int or None
        Number of parts of the queries, each of which tests a fit to the others. With 0, one half of
        the queries fits and the other half tests, and guarantees are proven. With 5, all queries
        test, each with a fit without its fifth, and the rule uses a fit to all: a precision is then
        simulated, not proven, and other rates are refused. From 2 to 10 parts are possible. None,
        the default: 0 from 1,000 queries on, and 5 for fewer; other rates than a precision are then
        proven by halves. Of one score for each query, without evidence, nothing has to be learnt:
        by default all queries test it, and guarantees are proven, a precision under the condition
        that a better score is never less often relevant.
    groups : [Q] numbers or strings, or None
        Group of each query, such as its session: queries of a group depend on each other, and
        guarantees then count groups, none of which fits and tests at once. At least 20 groups.
        None, the default: queries are independent.
    labels : [Q] or [Q, k] whole numbers or strings, or None
        Label of the first hit of each query, which is the answer to it, for
        ``ScoreCalibration.guarantee_by_class``; or those of all hits. None, the default: answers
        have no labels.
    seed : int
        Seed of the random split, 0 or more. Default: 0.

    Raises
    ------
    InputError
        For shapes that do not fit, lists of unequal length, sparse matrices, NaN, scores that are
        not sorted as ``kind`` says, fewer than 20 queries, ids that stand twice, ids of hits and of
        relevant items of different types, and judgements of relevant hits alone where others are
        not judged.

    Warns
    -----
    FewQueriesWarning
        If fewer than 5 queries of the fitting half have a relevant hit first, or an irrelevant one.
    ScoresWarning
        If hits are not judged: they are left out. If queries have no hit. If queries are copies, or
        look like copies. If relevant hits have lower scores than others, of distances larger ones.
        If of hits with equal scores the relevant ones stand first.

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
    if items is not None:
        scores = empty_by_id(scores, items, kinds)
    values, exists = checked_scores(scores, kinds)
    if not exists.any():
        raise InputError(f"scores: {len(exists)} queries have no hit: pass queries with hits.")
    _check_fused(values, exists, kinds)
    ids: list[Array] = []
    if items is not None:
        rows = ids_by_query(items, exists)
        relevant, known, count = judged_by_id(relevant, rows, exists)
        mated, total = known if mated is None else mated, count if total is None else total
        places = {hits: row for row, hits in enumerate(dict.fromkeys(map(tuple, rows.values())))}
        ids = [np.array([places[tuple(hits)] for hits in rows.values()], float)[:, None]]
    elif isinstance(relevant, (Mapping, str)):
        raise InputError(
            f"relevant={relevant!r:.60} takes items=, the ids of the hits: pass "
            "{query: [item, ...]}, in the order of scores, or an array [Q, k]."
        )
    judged = judgements("relevant", relevant, exists)
    has_match, counted = _of_collection(judged, mated, total)
    _check_not_positives_only(judged)
    if missing := int((judged == -1).sum()):
        _warn(f"{missing:,} of {exists.sum():,} hits are not judged (-1): they are left out.")
    if nothing := int((~exists[:, 0]).sum()):
        _warn(
            f"{nothing:,} of {len(exists):,} queries have no hit: they are never answered, and are "
            "in no rate of hits."
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
    grouped = None if groups is None else read_groups(groups, len(values))
    answers = None
    if labels is not None:
        answers = AnswerClasses.of(first_labels(labels, len(values)), exists[:, 0])
        ids.append(answers.codes.astype(float)[:, None])
    told_apart = [*ids, *extra]
    if grouped is None:
        kept = _distinct(values, exists, judged, told_apart)
    else:
        drawn = np.random.default_rng(check_count("seed", seed, 0)).permutation(len(values))
        kept = copies_in_groups(drawn, values, exists, judged, told_apart, grouped)
        grouped = _groups_left(grouped, kept)
    values, exists, judged = values[kept], exists[kept], judged[kept]
    answers = None if answers is None else answers.take(kept)
    has_match, counted, extra = has_match[kept], counted[kept], [column[kept] for column in extra]
    features = score_features(values, exists, extra)
    first = first_hits(values, exists, extra, kinds)
    scale = ScoreScale.of(first, None if grouped is None else grouped[exists[:, 0]])
    order = np.random.default_rng(check_count("seed", seed, 0)).permutation(len(values))
    if len(values) < 2 * LEAST:
        raise InputError(f"{len(values)} queries to calibrate on: pass at least {2 * LEAST}.")

    def fit(rows: npt.NDArray[np.int_], like: ListModel | None) -> ListModel:
        return ListModel.fit(features.of_queries(rows), judged[rows], len(kinds), like=like)

    def tested_by(parts: int) -> ScoreCalibration:
        """Fit to all, and test in so many parts; 0: fit to one half, and test by the other."""
        model, fitted, tested, probability = fit_and_judge(
            order,
            grouped,
            parts,
            fit,
            lambda model, rows: model(features.of_queries(rows)),
            lambda held, answering: on_answering_scale(held, answering, exists),
        )
        grid = np.empty(0) if parts else probability[fitted, 0][exists[fitted, 0]]
        queries = tested_queries(probability, tested, grid, cross_fitted=bool(parts))
        return calibration_of(model, queries, tested)

    def tested_by_all() -> ScoreCalibration:
        """Fit the probability of one score, whose order needs no fit, and test by all."""
        model = fit(order, None)
        queries = tested_queries(model(features), order, np.empty(0), cross_fitted=False)
        queries = replace(queries, score=values[order, 0, 0])
        return calibration_of(model, queries, order)

    def tested_queries(
        probability: Array, tested: npt.NDArray[np.int_], grid: Array, *, cross_fitted: bool
    ) -> CalibrationQueries:
        return CalibrationQueries(
            probability[tested],
            judged[tested],
            has_match[tested],
            counted[tested],
            grid=grid,
            abstained=np.zeros(len(tested), bool),
            cross_fitted=cross_fitted,
            group=np.empty(0) if grouped is None else grouped[tested].astype(np.float64),
        )

    def calibration_of(
        model: ListModel, queries: CalibrationQueries, tested: npt.NDArray[np.int_]
    ) -> ScoreCalibration:
        own = None if answers is None else answers.take(tested)
        k, names = values.shape[1], tuple(columns)
        return ScoreCalibration(kinds, k, names, model, queries, scale, None, own)

    one_score = cross_fit is None and values.shape[1] == len(kinds) == 1 and not columns
    both = cross_fit is None and len(order) < FEW and not one_score
    found = tested_by_all() if one_score else tested_by(PARTS if both else cross_fit or 0)
    by_halves = not (found.cross_fitted or one_score)
    fitted = split_by_group(order, grouped, 2)[0] if by_halves else order
    warn_of_scores(values[fitted, :, 0], judged[fitted])
    warn_of_ties(values, judged)
    if both:
        with suppress(InputError):  # all scores of one half may be equal, or not judged
            found = replace(found, halves=tested_by(0))
    return found


def _check_fused(values: Array, exists: Flags, kinds: tuple[str, ...]) -> None:
    """Refuse fused scores that are the same for the first hit of every query.

    Raises
    ------
    InputError
        Then: ranks of one list, or scores that each query divides by its largest.
    """
    first = values[exists[:, 0], 0]
    for column, kind in zip(first.T, kinds, strict=True):
        if kind == FUSED and len(column) > 1 and np.ptp(column) <= 1e-9 * np.abs(column).max():
            raise InputError(
                f"scores: the first hit of each of {len(column):,} queries has the fused score "
                f"{column[0]:.4g}, as ranks of one list have, and scores that each query divides "
                "by its largest: no rule can tell queries apart. Pass the scores of the search, "
                "kind='similarity', or fuse two lists or more."
            )


def _check_not_positives_only(judged: Judged) -> None:
    """Refuse judgements of relevant hits alone, next to hits without one.

    Raises
    ------
    InputError
        Then: what is not judged may be wrong.
    """
    relevant, missing = int((judged == 1).sum()), int((judged == -1).sum())
    if relevant and missing and not (judged == 0).any():
        raise InputError(
            f"relevant: all {relevant:,} judged hits are relevant, and {missing:,} are not judged. "
            "No error can be counted in them. If what is not named is irrelevant, pass lists, "
            "{query: [id, ...]}, or 0 in their place; else judge it, too."
        )


def _of_collection(
    judged: Judged, mated: ArrayLike | None, total: ArrayLike | None
) -> tuple[Judged, Array]:
    """Return whether the collection has a relevant item of each query [Q], and how many [Q]."""
    counted = (judged == 1).sum(1).astype(np.float64)
    found = counted > 0
    if mated is None:
        unknown = ~found & ((judged == -1).any(1) | (judged[:, 0] == NO_HIT))
        has_match = np.where(unknown, -1, found).astype(np.int8)
    else:
        has_match = judgements("mated", mated, np.ones(found.shape, bool))
        if wrong := int((found & (has_match == 0)).sum()):
            raise InputError(f"mated is 0 for {wrong} queries with a relevant hit: make it 1.")
    if total is None:
        return has_match, counted
    given = numbers("total", total)
    if given.shape != counted.shape or not np.isfinite(given).all() or (given < counted).any():
        raise InputError("total: pass [Q] counts, at least the relevant hits of each query.")
    return has_match, given


def _distinct(values: Array, exists: Flags, judged: Judged, columns: list[Array]) -> Flags:
    """Return queries that are no copy of an earlier one [Q]; warn of copies, which are left out."""
    first = copies_among(values, exists, judged, columns)
    n, distinct = len(first), int(first.sum())
    if distinct < n:
        _warn(
            f"{n - distinct:,} of {n:,} queries are copies, with the scores of another query: each "
            f"of the {distinct:,} distinct queries counts once, as it was judged first. If they "
            "are different queries, pass items=, the ids of their hits."
        )
    return first


def _groups_left(group: npt.NDArray[np.intp], kept: Flags) -> npt.NDArray[np.intp]:
    """Return the groups [n] of the queries that count; warn of copies in several groups."""
    n, distinct = len(kept), int(kept.sum())
    if distinct == n:
        return group
    _warn(
        f"{n - distinct:,} of {n:,} queries are copies of queries in other groups, with the same "
        "scores: each counts in one group. If they are different queries, pass items=, the ids of "
        "their hits."
    )
    return read_groups(np.unique(group[kept], return_inverse=True)[1], distinct)


def _warn(text: str) -> None:
    warnings.warn(text, ScoresWarning, stacklevel=callers_line())
