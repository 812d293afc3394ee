"""Features of scored hits -> the probability of a match.

A logistic score whose weights of values are at least 0, then the calibrator with the smallest
cross-validated log loss. The first hit of a list and those behind it are two populations, with a
model each: one for both ranks the first hits by what tells the others apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from laplace_metric.calibration._arrays import Array, Flags, Judged
from laplace_metric.calibration._calibrators import CALIBRATORS, Calibrator, fit_calibrator
from laplace_metric.calibration._logistic_score import WIDTH, posterior_mode
from laplace_metric.calibration._match_probability import ENOUGH, FOLDS, query_folds
from laplace_metric.calibration._score_features import LIST
from laplace_metric.errors import InputError

SELECTED, LEAST = 20_000, 50
"""Hits, and queries at least, that choose among the candidates: the choice needs no more."""
FIRST, BEHIND = slice(1), slice(1, None)
"""Places of a list."""
RISING = 1.5
"""Prior mean of the standardised weight of the first scorer's value."""
WIDE = 100.0
"""Standard deviation of the weights where queries are many; separable ones have a solution then."""


@dataclass(frozen=True)
class ScoreModel:
    """p = calibrator(weights . features + offset); a weight is 0 where a feature is not used.

    Parameters
    ----------
    weights, offset : [F], float
        Coefficients of the features.
    calibrator : Calibrator
        Function that turns the sum into a probability.
    chosen : str
        Features and calibrator with the smallest cross-validated log loss.
    losses : dict of str to float
        Cross-validated log loss of every candidate.
    """

    weights: Float[np.ndarray, " F"]
    offset: float
    calibrator: Calibrator
    chosen: str
    losses: Mapping[str, float]

    def __call__(self, features: Array) -> Array:
        return np.asarray(self.calibrator(features @ self.weights + self.offset))


@dataclass(frozen=True)
class ListModel:
    """Model of the first hit of a list, and model of the hits behind it."""

    first: ScoreModel
    behind: ScoreModel

    def __call__(self, features: Array) -> Array:
        """Return the probability of each hit [Q, k] of features [Q, k, F]."""
        return np.column_stack([self.first(features[:, :1]), self.behind(features[:, 1:])])

    @classmethod
    def fit(
        cls,
        features: Array,
        judged: Judged,
        exists: Flags,
        scorers: int,
        *,
        like: ListModel | None = None,
    ) -> ListModel:
        """Fit to the hits [Q, k] of queries; ``like`` is a fit to more queries, or None.

        Hits behind the first have its model, where nothing can be learnt from themselves.

        Raises
        ------
        InputError
            As ``fit_score_model``, of first hits.
        """

        def fitted(places: slice, same: ScoreModel | None) -> ScoreModel:
            there = np.zeros_like(exists)
            there[:, places] = exists[:, places]
            return fit_score_model(features, judged, there, scorers, like=same)

        first = fitted(FIRST, None if like is None else like.first)
        try:
            return cls(first, fitted(BEHIND, None if like is None else like.behind))
        except InputError:  # one hit a query, hits that nobody judged, or one score
            return cls(first, first)


def fit_score_model(
    features: Array,
    judged: Judged,
    exists: Flags,
    scorers: int,
    *,
    like: ScoreModel | None = None,
) -> ScoreModel:
    """Choose features and calibrator by cross-validated log loss; a query counts once.

    ``like`` is a fit to more queries, whose choice is taken over.

    Hits of one kind alone have a probability all the same, by the prior of the score: it is (n +
    1/2) / (n + 1) at the mean of n hits that are all relevant, and rises with the score.

    Raises
    ------
    InputError
        If no hit is judged, or all have one score.
    """
    use = exists & (judged >= 0)
    x, y = features[use], (judged[use] == 1).astype(np.float64)
    groups = np.unique(use.nonzero()[0], return_inverse=True)[1]
    weight = 1 / np.bincount(groups)[groups]
    if not len(y):
        raise InputError("relevant: no hit is judged. Pass hits with a judgement.")
    if np.ptp(x[:, 0]) == 0:
        raise InputError(f"scores are all {x[0, 0]:g}: nothing can be learnt from them.")
    least = fewest(y, groups)
    width = WIDE if least >= ENOUGH else WIDTH
    names = [name for name in CALIBRATORS if name != "isotonic" or least >= ENOUGH]
    sets = _feature_sets(scorers, features.shape[-1], judged.shape[1])
    if least < FOLDS and like is None:
        sets, names = {"value": [0]}, ["logistic"]
    if like is None:
        losses = _cross_validated(x, y, groups, weight, sets, names, scorers, width)
        # rounded: losses that differ by an optimiser's rounding are equal, the first is simplest
        chosen = min(losses, key=lambda key: round(losses[key], 9))
    else:
        chosen, losses = like.chosen, dict(like.losses)
    of, name = chosen.split(", ")
    weights, offset = _logistic(x, y, weight, sets[of], scorers, width)
    calibrator = fit_calibrator(name, x @ weights + offset, y, weight)
    return ScoreModel(weights, offset, calibrator, chosen, losses)


def fewest(relevant: Array, queries: npt.NDArray[np.int_]) -> int:
    """Count the queries with a hit of the rarer kind, relevant or not.

    Parameters
    ----------
    relevant, queries : [n]
        Relevance, 1 or 0, of each hit, and the number of its query.
    """
    return min(len(np.unique(queries[relevant == kind])) for kind in (1, 0))


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
    """Return the held-out log loss of each candidate, over the first ``SELECTED`` hits."""
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


def _feature_sets(scorers: int, n_features: int, k: int) -> dict[str, list[int]]:
    """Return columns: the first scorer's value; all values; all of a list; further evidence."""
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
    """Return weights [F] and offset; the weights of values are not negative.

    They are found in units of the standard deviation.
    """
    values = range(0, len(LIST) * scorers, len(LIST))
    centre = np.array([RISING if column == 0 else 0.0 for column in columns])
    bounds = [(0.0 if column in values else -np.inf, np.inf) for column in columns]
    weights = np.zeros(x.shape[1])
    part = x[:, columns]
    weights[columns], offset = posterior_mode(part, y, weight, centre, width, bounds, True)
    return weights, offset
