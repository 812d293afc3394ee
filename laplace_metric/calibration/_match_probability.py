"""The probability that a query and its neighbour match: a score, then a calibrator.

Of the feature sets and the calibrators those with the smallest cross-validated log loss are taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric.calibration._arrays import namespace
from laplace_metric.calibration._calibrators import CALIBRATORS, Calibrator, fit_calibrator
from laplace_metric.calibration._features import FEATURE_SETS, PairFeatures
from laplace_metric.calibration._logistic_score import WIDE, WIDTH, Array, Score, fit_score
from laplace_metric.errors import FewQueriesWarning, InputError, callers_line

EVIDENCE, PORTABLE = "all", "portable"
"""Feature sets of a calibration, and of one that other engines can apply."""
FOLDS = 5
ENOUGH = 50
"""Queries of each kind, with a match and with anything else, from which on the prior is wide and a
step function is tried: of fewer, its ties lose the order of the distance (Niculescu-Mizil & Caruana
2005 want a thousand points)."""


@dataclass(frozen=True)
class MatchProbability:
    """``p = calibrator(score(features))``.

    Parameters
    ----------
    feature_set : "distance" | "all" | "portable"
        Name of the set of features that it uses.
    score : Score
        Linear score of the features of a pair.
    calibrator : Calibrator
        Function that turns a score into a probability.
    losses : dict of calibrator to (log loss, standard error)
        Cross-validated loss of every candidate; the smallest was chosen.
    """

    feature_set: str
    score: Score
    calibrator: Calibrator
    losses: dict[str, tuple[float, float]]

    def logit(self, features: PairFeatures) -> Float[np.ndarray, "Q k"]:
        """Return the score of each pair [Q, k], larger for a match; -inf without a neighbour."""
        return np.where(features.exists, self.score(features.values), -np.inf)

    def __call__(self, logit: Any) -> Any:
        """Return probabilities of such scores; 0 where there is no neighbour, NaN for NaN."""
        xp = namespace(logit)
        exists = logit != -xp.inf
        return xp.where(exists, self.calibrator(xp.where(exists, logit, 0.0)), 0.0)

    @property
    def chosen(self) -> str:
        """Name of the evidence and of the calibrator."""
        return f"{self.feature_set}, {self.calibrator.kind}"


def fit_match_probability(
    features: PairFeatures,
    match: Bool[np.ndarray, "Q k"],
    *,
    portable: bool = False,
    like: MatchProbability | None = None,
) -> MatchProbability:
    """Fit all evidence by a ridge, with the calibrator of the smallest cross-validated log loss.

    Pairs of one query stay in one fold. Where fewer than five queries have a match, or fewer than
    five have anything else, only the distance and the rank count, by a slope that is mostly the
    prior's.

    Parameters
    ----------
    features : PairFeatures
        Features of [Q, k] pairs.
    match : [Q, k]
        True for each pair that is a match.
    portable : bool
        Leave out what only the index knows. Default: False.
    like : MatchProbability, optional
        Fit to more queries, whose evidence and calibrator are taken over. None, the default: they
        are chosen here.

    Raises
    ------
    InputError
        For fewer than ten queries.

    Warns
    -----
    FewQueriesWarning
        If the queries hardly determine how the probability falls with the distance.
    """
    exists = features.exists
    if len(match) < 2 * FOLDS:
        raise InputError(f"{len(match)} queries to calibrate on: pass at least {2 * FOLDS}.")
    x, y, groups = features.values[exists], match[exists].astype(np.float64), exists.nonzero()[0]
    kinds = int((match & exists).any(1).sum()), int((~match & exists).any(1).sum())
    feature_set = PORTABLE if portable else EVIDENCE
    width = WIDE if min(kinds) >= ENOUGH else WIDTH
    names = [name for name in CALIBRATORS if name != "isotonic" or min(kinds) >= ENOUGH]
    if like is not None:
        feature_set, name, losses = like.feature_set, like.calibrator.kind, like.losses
    else:
        if min(kinds) < FOLDS:
            _warn_of_few(kinds, len(match))
            feature_set, names = "distance", ["logistic"]
        losses = _cross_validated(x, y, groups, feature_set, names, width)
        # rounded: losses that differ by an optimiser's rounding are equal, the first is simplest
        name = min(losses, key=lambda key: round(losses[key][0], 9))
    return MatchProbability(feature_set, *_fitted(x, y, groups, feature_set, name, width), losses)


def _warn_of_few(kinds: tuple[int, int], n: int) -> None:
    what = "a match" if kinds[0] < kinds[1] else "anything else"
    warnings.warn(
        f"{min(kinds)} of the {n} queries that fit the match probability have {what} among their "
        f"neighbours, too few to determine how it falls with the distance: at least {FOLDS} are "
        "needed. It falls with the distance as it does on other data. Calibrate on more queries.",
        FewQueriesWarning,
        stacklevel=callers_line(),
    )


def _fitted(
    x: Array,
    y: Array,
    groups: npt.NDArray[np.int_],
    feature_set: str,
    name: str,
    width: float = WIDTH,
) -> tuple[Score, Calibrator]:
    weight = 1 / np.bincount(groups)[groups]
    score = fit_score(x, y, weight, FEATURE_SETS[feature_set], width)
    return score, fit_calibrator(name, score(x), y, weight)


def query_folds(groups: npt.NDArray[np.int_]) -> Iterator[tuple[Array, Array]]:
    """Yield rows [n] to train and to test with, as masks; the rows of a query stay together.

    Queries with most rows first, each goes to the fold that has the fewest.
    """
    rows, fold = np.bincount(groups), np.empty(groups.max() + 1, int)
    size = np.zeros(FOLDS, int)
    for query in np.argsort(rows, kind="stable")[::-1]:
        fold[query] = size.argmin()
        size[fold[query]] += rows[query]
    for number in range(FOLDS):
        test = fold[groups] == number
        yield ~test, test


def _cross_validated(
    x: Array,
    y: Array,
    groups: npt.NDArray[np.int_],
    feature_set: str,
    names: list[str],
    width: float,
) -> dict[str, tuple[float, float]]:
    """Return the mean log loss of held-out pairs and its standard error, for each calibrator."""
    queries = np.bincount(groups).clip(min=1)
    weight = 1 / queries[groups]
    loss = {name: np.empty(len(y)) for name in names}
    for train, test in query_folds(groups):
        score = fit_score(x[train], y[train], weight[train], FEATURE_SETS[feature_set], width)
        seen, new = score(x[train]), score(x[test])
        for name, held_out in loss.items():
            calibrator = fit_calibrator(name, seen, y[train], weight[train])
            held_out[test] = _log_loss(calibrator(new), y[test])
    return {
        name: (
            float(each.mean()),
            float((np.bincount(groups, each) / queries).std(ddof=1) / len(queries) ** 0.5),
        )
        for name, each in loss.items()
    }


def _log_loss(probability: Array, match: Array) -> Array:
    return np.asarray(-np.log(np.where(match == 1, probability, 1 - probability).clip(min=1e-12)))
