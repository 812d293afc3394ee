"""Scored hits -> the probability of a match: features of a list, and the model of ``_scores``.

With v the score, larger for a match (a distance counts with its sign changed), the features of hit
i in its list are

    value  v_i            best  max_j v_j - v_i          next  v_i less the next lower v_j
    z      (v_i - mean_j v_j) / sd_j v_j                 rank  log i

in units of their standard deviation, so that they depend on no scale. The probability is that of
``_probability``: a logistic score whose weights of values are at least 0, then the calibrator with
the smallest cross-validated log loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import ArrayLike
from laplace_metric.calibration._arrays import Array, Flags, Judged
from laplace_metric.calibration._numbers import are_booleans, numbers
from laplace_metric.calibration._padding import NO_HIT, is_padding
from laplace_metric.calibration._probability import (
    CALIBRATORS,
    ENOUGH,
    FOLDS,
    ROUNDING,
    WIDTH,
    Calibrator,
    fit_calibrator,
    posterior_mode,
    query_folds,
)
from laplace_metric.errors import (
    FewQueriesWarning,
    InputError,
    NonFiniteError,
    ScoresWarning,
    callers_line,
)

LIST = ("value", "best", "next", "z")
"""Features of one scorer."""
SELECTED, LEAST = 20_000, 50
"""Hits, and queries at least, that choose among the candidates: the choice needs no more."""
UNSORTED = 1e-6
"""Relative rise of a similarity, or fall of a distance, that is a rounding of float32."""
WRONG_WAY = 1e-3
"""p-value below which relevant hits score lower than others."""
ORDERED = 0.9
"""Share of tied hits of which the relevant one stands first, that no search has by chance."""
RISING = 1.5
"""Prior mean of the standardised weight of the first scorer's value."""
WIDE = 100.0
"""Standard deviation of the weights where queries are many; separable ones have a solution then."""


@dataclass(frozen=True)
class ScoreModel:
    """p = calibrator(weights . features + offset); a weight is 0 where a feature is not used."""

    weights: Array
    offset: float
    calibrator: Calibrator

    def __call__(self, features: Array) -> Array:
        return np.asarray(self.calibrator(features @ self.weights + self.offset))


def fit_score_model(
    features: Array, judged: Judged, exists: Flags, scorers: int
) -> tuple[str, dict[str, float], ScoreModel]:
    """Choose features and calibrator by cross-validated log loss; a query counts once."""
    use = exists & (judged >= 0)
    x, y = features[use], (judged[use] == 1).astype(np.float64)
    groups = np.unique(use.nonzero()[0], return_inverse=True)[1]
    weight = 1 / np.bincount(groups)[groups]
    if not 0 < y.sum() < len(y):
        what = "relevant" if len(y) and y.all() else "irrelevant or not judged"
        raise InputError(f"relevant: all hits are {what}. Pass hits of both kinds.")
    if np.ptp(x[:, 0]) == 0:
        raise InputError(f"scores are all {x[0, 0]:g}: nothing can be learnt from them.")
    least = fewest(judged[:, 0])
    width = WIDE if least >= ENOUGH else WIDTH
    names = [name for name in CALIBRATORS if name != "isotonic" or least >= ENOUGH]
    sets = _feature_sets(scorers, features.shape[-1], judged.shape[1])
    if least < FOLDS:
        sets, names = {"value": [0]}, ["logistic"]
    losses = _cross_validated(x, y, groups, weight, sets, names, scorers, width)
    # rounded: losses that differ by an optimiser's rounding are equal, the first is simplest
    chosen = min(losses, key=lambda key: round(losses[key], 9))
    of, name = chosen.split(", ")
    weights, offset = _logistic(x, y, weight, sets[of], scorers, width)
    calibrator = fit_calibrator(name, x @ weights + offset, y, weight)
    return chosen, losses, ScoreModel(weights, offset, calibrator)


def _cross_validated(
    x: Array,
    y: Array,
    groups: npt.NDArray[np.int_],
    weight: Array,
    sets: dict[str, list[int]],
    names: list[str],
    scorers: int,
    width: float,
) -> dict[str, float]:
    """Mean log loss of each candidate on held-out queries, of the first ``SELECTED`` hits."""
    some = groups < max(LEAST, SELECTED * (groups[-1] + 1) // len(y))
    x, y, groups, weight = x[some], y[some], groups[some], weight[some]
    losses = {f"{of}, {name}": 0.0 for of in sets for name in names}
    for train, test in query_folds(groups):
        for of, columns in sets.items():
            weights, offset = _logistic(x[train], y[train], weight[train], columns, scorers, width)
            seen, new = x[train] @ weights + offset, x[test] @ weights + offset
            for name in names:
                p = fit_calibrator(name, seen, y[train], weight[train])(new).clip(1e-12, 1 - 1e-12)
                loss = -np.log(np.where(y[test] == 1, p, 1 - p))
                losses[f"{of}, {name}"] += float(loss @ weight[test] / weight.sum())
    return losses


def fewest(first: Judged) -> int:
    """Count the first hits [Q] of the rarer kind, relevant or not."""
    return min(int((first == 1).sum()), int((first == 0).sum()))


def warn_of_scores(value: Array, judged: Judged) -> None:
    """Warn of few queries of a kind, and of relevant hits that score lower than others [Q, k]."""
    from scipy.special import ndtr

    if (least := fewest(judged[:, 0])) < FOLDS:
        warnings.warn(
            f"only {least} of the {len(judged)} queries that fit the probability have a relevant, "
            f"or an irrelevant, first hit: at least {FOLDS} of both are needed. Calibrate on more "
            "queries.",
            FewQueriesWarning,
            stacklevel=callers_line(),
        )
    right, wrong = value[judged == 1], np.sort(value[judged == 0])
    below = np.searchsorted(wrong, right) + np.searchsorted(wrong, right, side="right")
    auroc, n, m = below.mean() / (2 * len(wrong)), len(right), len(wrong)
    if ndtr((auroc - 0.5) * (12 * n * m / (n + m + 1)) ** 0.5) < WRONG_WAY:  # Mann & Whitney 1947
        warnings.warn(
            f"scores: by this kind= relevant hits rank below others (AUROC {auroc:.2f}). "
            "Similarities and distances taken for each other look like that.",
            ScoresWarning,
            stacklevel=callers_line(),
        )


def warn_of_ties(values: Array, judged: Judged) -> None:
    """Warn if of hits with equal scores [Q, k, S] the relevant ones stand first.

    No search knows which are relevant. Of each query the first such pair of hits counts.
    """
    from scipy.special import bdtrc

    front, behind = judged[:, :-1], judged[:, 1:]
    equal = (values[:, :-1] == values[:, 1:]).all(2)
    mixed = equal & (np.minimum(front, behind) == 0) & (np.maximum(front, behind) == 1)
    rows = mixed.any(1)
    n, at = int(rows.sum()), mixed.argmax(1) if mixed.shape[1] else np.zeros(len(mixed), int)
    first = int((np.take_along_axis(judged, at[:, None], 1)[rows, 0] == 1).sum())
    if first > ORDERED * n and bdtrc(first - 1, n, 0.5) < WRONG_WAY:
        warnings.warn(
            f"scores: of relevant and irrelevant hits with equal scores, in {first:,} of {n:,} "
            "queries the relevant one stands first. If the lists were ordered by relevance, no "
            "guarantee holds: keep the order of the search.",
            ScoresWarning,
            stacklevel=callers_line(),
        )


def _feature_sets(scorers: int, n_features: int, k: int) -> dict[str, list[int]]:
    """Columns: the value of the first scorer; the values; all of a list; and further evidence."""
    lists = len(LIST) * scorers + 1
    sets = {"value": [0]}
    if scorers > 1:
        sets["values"] = list(range(0, lists - 1, len(LIST)))
    if k > 1:
        sets["list"] = list(range(lists))
    if n_features > lists:
        sets["evidence"] = list(range(n_features))
    return sets


def _logistic(
    x: Array, y: Array, weight: Array, columns: list[int], scorers: int, width: float
) -> tuple[Array, float]:
    """Weights [F] and offset, found in units of the standard deviation; no value counts against."""
    values = range(0, len(LIST) * scorers, len(LIST))
    centre = np.array([RISING if column == 0 else 0.0 for column in columns])
    bounds = [(0.0 if column in values else -np.inf, np.inf) for column in columns]
    weights = np.zeros(x.shape[1])
    part = x[:, columns]
    weights[columns], offset = posterior_mode(part, y, weight, centre, width, bounds, True)
    return weights, offset


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
    given = numbers("scores", scores)
    values = given[:, None] if given.ndim == 1 else given  # one hit a query
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or not values.size or values.shape[2] != len(kinds):
        shape = "[Q, k]" if len(kinds) == 1 else f"[Q, k, {len(kinds)}]"
        raise InputError(f"scores has shape {given.shape}: pass {shape} for kind={kinds}.")
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


def score_features(values: Array, exists: Flags, columns: Sequence[Array]) -> Array:
    """[Q, k, F]: ``LIST`` of each scorer, the rank, further columns; 0 where there is no hit."""
    n = exists.sum(1)[:, None].clip(1)  # of a query without a hit nothing is used
    found: list[Array] = []
    for v in np.moveaxis(values, 2, 0):
        listed = np.where(exists, v, -np.inf)
        order = np.argsort(-listed, 1, kind="stable")
        ordered = np.take_along_axis(listed, order, 1)
        mean = v.sum(1, keepdims=True) / n
        sd = np.sqrt((np.where(exists, v - mean, 0.0) ** 2).sum(1, keepdims=True) / n)
        following = np.column_stack([ordered[:, 1:], np.full(len(v), -np.inf)])
        with np.errstate(invalid="ignore"):  # behind the last hit nothing follows
            gaps = np.where(np.isfinite(following), ordered - following, 0.0)
        gap = np.empty_like(v)
        np.put_along_axis(gap, order, gaps, 1)
        z = np.divide(v - mean, sd, out=np.zeros_like(v), where=sd > ROUNDING * np.abs(mean))
        found += [v, ordered[:, :1] - v, gap, z]
    rank = np.log(np.arange(1.0, exists.shape[1] + 1)) + np.zeros(exists.shape)
    return np.where(exists[..., None], np.stack([*found, rank, *columns], -1), 0.0)


def evidence_column(name: str, column: ArrayLike, exists: Flags) -> Array:
    """Further evidence [Q, k], of one number a query or a hit."""
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
        judged = judged[:, None]
    if judged.shape != shape:
        raise InputError(f"{name} has shape {judged.shape}: pass {shape}.")
    other = exists & ~np.isin(judged, (-1, 0, 1))
    if other.any():
        row = int(other.nonzero()[0][0])
        raise InputError(f"{name} holds {judged[other][0]:g}: {wanted} The row is {row}.")
    return np.where(exists, judged, NO_HIT).astype(np.int8)
