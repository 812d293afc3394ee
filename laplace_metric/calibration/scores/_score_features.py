"""Scores of the hits of a query, read and checked, and the features of each hit.

With v the score, larger for a match (a distance counts with its sign changed), the features of hit
i in its list are

    value  v_i            best  max_j v_j - v_i          next  v_i less the next lower v_j
    z      (v_i - mean_j v_j) / sd_j v_j                 rank  log i

in units of their standard deviation, so that they depend on no scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from laplace_metric._utils.validation import ArrayLike
from laplace_metric.calibration._array_namespace import Array, Flags, Judged, namespace
from laplace_metric.calibration._padding import NO_HIT, is_padding
from laplace_metric.calibration.probability._features import PairFeatures
from laplace_metric.calibration.probability._logistic_score import ROUNDING
from laplace_metric.calibration.scores._score_numbers import are_booleans, numbers
from laplace_metric.errors import InputError, NonFiniteError

LIST = ("value", "best", "next", "z")
"""Features of one scorer."""
UNSORTED = 1e-6
"""Relative rise of a similarity, or fall of a distance, that is a rounding of float32."""


# Scores -> features.


def checked_scores(scores: ArrayLike, kinds: tuple[str, ...]) -> tuple[Array, Flags]:
    """Return values [Q, k, S], larger for a match, 0 where there is no hit; and which hits exist.

    Raises
    ------
    InputError
        For other shapes and types, a place without a hit in front of one with a hit, and scores
        that are not sorted as ``kinds`` says.
    NonFiniteError
        For NaN.
    """
    if are_booleans(scores):
        raise InputError("scores are booleans: pass the scores first, then which are relevant.")
    if isinstance(scores, tuple) and [getattr(part, "ndim", 0) for part in scores] == [2, 2]:
        raise InputError(
            "scores is a pair of arrays, such as (D, I) of index.search: pass the first alone, and "
            "the ids as items= of calibrate_scores."
        )
    given = numbers("scores", scores)
    if given.ndim == 0 and len(kinds) == 1:
        raise InputError(f"scores is {given:g}: pass [Q, k] or [Q], for one score [{given:g}].")
    if not given.size:
        raise InputError(
            f"scores is empty, of shape {given.shape}: pass one query or more, [Q, k]."
        )
    values = given[:, None] if given.ndim == 1 else given  # one hit a query
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or values.shape[2] != len(kinds):
        kind = kinds[0] if len(kinds) == 1 else kinds
        shape = "[Q, k]" if len(kinds) == 1 else f"[Q, k, {len(kinds)}]"
        raise InputError(f"scores has shape {given.shape}: pass {shape} for kind={kind!r}.")
    if (rows := np.isnan(values).any((1, 2))).any():
        raise NonFiniteError(
            f"scores holds NaN in row {rows.argmax()} ({rows.sum():,} rows): pass -inf where a "
            "list ends, inf of distances."
        )
    values = values * np.where(np.array(kinds) == "distance", -1.0, 1.0)
    absent = is_padding(values)  # a hit has a score of each scorer
    exists: Flags = ~absent.any(2)
    front = (np.diff(exists.astype(int), axis=1) > 0).any(1) | (values == np.inf).any((1, 2))
    if front.any():
        raise InputError(
            f"scores is infinite in front of other hits in row {front.argmax()} ({front.sum():,} "
            "rows): -inf (inf of distances) stands behind the last hit of a query, for all scorers."
        )
    first = np.where(exists, values[..., 0], -np.inf)
    rounding = UNSORTED * np.where(exists, np.abs(values[..., 0]), 0.0)[:, :-1]
    wrong = np.asarray((first[:, 1:] > first[:, :-1] + rounding).any(1))
    if kinds[0] != "score" and wrong.any():
        order, other = "fall", "distance"
        if kinds[0] == "distance":
            order, other = "rise", "similarity"
        raise InputError(
            f"scores of {int(wrong.sum()):,} of {len(wrong):,} queries do not {order} from hit to "
            f"hit, as kind={kinds[0]!r} says. Pass kind={other!r} if they are that, 'score' if the "
            "hits are in another order, or sort them."
        )
    return np.where(exists[..., None], values, 0.0), exists


def first_hits(
    values: Array, exists: Flags, columns: Sequence[Array], kinds: tuple[str, ...]
) -> Array:
    """Return the scores of first hits [n, S], in the units of the caller, and their columns."""
    given = values[:, 0] * np.where(np.array(kinds) == "distance", -1.0, 1.0)
    return np.column_stack([given, *(column[:, 0] for column in columns)])[exists[:, 0]]


def score_features(values: Array, exists: Flags, columns: Sequence[Array]) -> PairFeatures:
    """Return [Q, k, F]: ``LIST`` of each scorer, rank, further columns; 0 where there is no hit."""
    with np.errstate(invalid="ignore", divide="ignore"):  # a list of equal scores has no z
        return PairFeatures(list_features(values, exists, columns, next_lower), exists)


def list_features(
    values: Any, exists: Any, columns: Sequence[Any], next_lower: Callable[[Any], Any]
) -> Any:
    """Return [Q, k, F] as ``score_features``, of arrays or of tensors.

    Parameters
    ----------
    values : [Q, k, S]
        Scores, larger for a match, 0 where there is no hit.
    exists : [Q, k]
        True where there is a hit.
    columns : sequence of [Q, k]
        Further columns of evidence, one number for each hit.
    next_lower : function of [Q, k]
        Score behind each one, of scores in any order: the next lower, or an equal one that stands
        further back; -inf behind the last.
    """
    xp, found = namespace(values), list[Any]()
    n = exists.sum(1)[:, None].clip(1)  # of a query without a hit nothing is used
    for scorer in range(values.shape[2]):
        v = values[:, :, scorer]
        listed = xp.where(exists, v, -xp.inf)
        mean = v.sum(1)[:, None] / n
        apart = xp.where(exists, v - mean, 0.0)
        sd = xp.sqrt((apart**2).sum(1) / n[:, 0])[:, None]
        following = next_lower(listed)
        gap = xp.where(xp.isfinite(following), listed - following, 0.0)
        z = xp.where(sd > ROUNDING * abs(mean), apart / sd, 0.0)
        found += [v, xp.amax(listed, 1)[:, None] - v, gap, z]
    rank = xp.log(xp.ones_like(values[:, :, 0]).cumsum(1))
    return xp.where(exists[..., None], xp.stack([*found, rank, *columns], -1), 0.0)


def next_lower(listed: Array) -> Array:
    """Return the score behind each one [Q, k], by sorting each list; see ``list_features``."""
    order = np.argsort(-listed, 1, kind="stable")
    ordered = np.take_along_axis(listed, order, 1)
    following = np.empty_like(listed)
    ends = np.full(len(listed), -np.inf)
    np.put_along_axis(following, order, np.column_stack([ordered[:, 1:], ends]), 1)
    return following


def evidence_column(name: str, column: ArrayLike, exists: Flags) -> Array:
    """Return further evidence [Q, k], from one number a query or a hit."""
    values = numbers(name, column)
    if values.shape == exists.shape[:1]:
        values = np.broadcast_to(values[:, None], exists.shape)
    if values.shape != exists.shape:
        raise InputError(f"{name} has shape {values.shape}: pass {exists.shape}, or one a query.")
    if (rows := (exists & ~np.isfinite(values)).any(1)).any():
        raise NonFiniteError(
            f"{name} holds NaN or infinity in row {rows.argmax()} ({rows.sum():,} rows): pass "
            "finite numbers for every hit."
        )
    return np.where(exists, values, 0.0)


def judgements(name: str, values: ArrayLike, exists: Flags) -> Judged:
    """Return numbers of the shape of ``exists``: 1, 0, and -1 where it is not known.

    [Q] numbers are taken for [Q, 1]. What stands where nothing exists is not looked at: it is
    ``NO_HIT``.

    Raises
    ------
    InputError
        For another shape, and other values.
    """
    shape = exists.shape
    wanted = "pass booleans, or 1, 0, and -1 where it is not known."
    judged = numbers(name, values, wanted)
    if judged.ndim == 1 and shape[1:] == (1,):
        if len(judged) != shape[0]:
            raise InputError(
                f"{name} has {len(judged)} entries for {shape[0]} queries: pass one for each."
            )
        judged = judged[:, None]
    if judged.shape != shape:
        raise InputError(f"{name} has shape {judged.shape}: pass {shape}.")
    other = exists & ~np.isin(judged, (-1, 0, 1))
    if other.any():
        row = int(other.nonzero()[0][0])
        raise InputError(f"{name} holds {judged[other][0]:g}: {wanted} The row is {row}.")
    return np.where(exists, judged, NO_HIT).astype(np.int8)
