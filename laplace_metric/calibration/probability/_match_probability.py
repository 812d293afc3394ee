"""The probability that a query and its neighbour match: a score, then a calibrator.

Of the feature sets and the calibrators those with the smallest cross-validated log loss are taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric.calibration._array_namespace import Flags, Judged, namespace
from laplace_metric.calibration.probability._calibrators import (
    CALIBRATORS,
    Calibrator,
    fit_calibrator,
)
from laplace_metric.calibration.probability._features import FEATURE_SETS, PairFeatures
from laplace_metric.calibration.probability._logistic_score import (
    Array,
    Prior,
    Score,
    fitted_score,
    hit_prior,
)
from laplace_metric.errors import FewQueriesWarning, FileFormatError, InputError, callers_line

DISTANCE, EVIDENCE, PORTABLE = "distance", "all", "portable"
"""Feature sets of few queries, of a calibration, and of one that other engines can apply."""
FOLDS = 5
ENOUGH = 50
"""Queries of each kind, with a match and with anything else, from which on the prior is wide and a
step function is tried: of fewer, its ties lose the order of the distance (Niculescu-Mizil & Caruana
2005 want a thousand points)."""
SELECTED, LEAST = 20_000, 50
"""Pairs, and queries at least, that choose among the candidates: the choice needs no more."""


@dataclass(frozen=True)
class MatchProbability:
    """``p = calibrator(score(features))``.

    Parameters
    ----------
    chosen : str
        Names of the feature set and of the calibrator.
    score : Score
        Linear score of the features of a pair.
    calibrator : Calibrator
        Function that turns a score into a probability.
    losses : dict of candidate to (log loss, standard error)
        Cross-validated loss of every candidate; the smallest was chosen.
    """

    chosen: str
    score: Score
    calibrator: Calibrator
    losses: Mapping[str, tuple[float, float]]

    def check_saved(self) -> None:
        """Refuse a choice of a file that was not among its candidates."""
        if self.chosen not in self.losses or not self.chosen.endswith(f", {self.calibrator.kind}"):
            raise FileFormatError(f"chosen is {self.chosen!r:.60}, not one of its losses")

    def logit(self, features: PairFeatures) -> Float[np.ndarray, "Q k"]:
        """Return the score of each pair [Q, k], larger for a match; -inf without a neighbour."""
        return np.where(features.exists, self.score(features.values), -np.inf)

    def __call__(self, logit: Any) -> Any:
        """Return probabilities of such scores; 0 where there is no neighbour, NaN for NaN."""
        xp = namespace(logit)
        exists = logit != -xp.inf
        return xp.where(exists, self.calibrator(xp.where(exists, logit, 0.0)), 0.0)

    @property
    def feature_set(self) -> str:
        """Name of the set of features that it uses."""
        return self.chosen.partition(", ")[0]


def fit_match_probability(
    features: PairFeatures,
    match: Bool[np.ndarray, "Q k"],
    *,
    portable: bool = False,
    like: MatchProbability | None = None,
) -> MatchProbability:
    """Fit all evidence of hits, with the calibrator of the smallest cross-validated log loss.

    Where fewer than five queries have a match, or fewer than five have anything else, only the
    distance and the rank count, by a slope that is mostly the prior's.

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
    kinds = int((match & exists).any(1).sum()), int((~match & exists).any(1).sum())
    if like is None and min(kinds) < FOLDS:
        _warn_of_few(kinds, len(match))
    usual = PORTABLE if portable else EVIDENCE
    sets = {name: hit_prior(FEATURE_SETS[name]) for name in (DISTANCE, usual)}
    return fit_probability(features, match.astype(np.int8), sets, (usual,), like=like)


def fit_probability(
    features: PairFeatures,
    judged: Judged,
    sets: Mapping[str, Prior],
    tried: tuple[str, ...],
    *,
    like: MatchProbability | None = None,
) -> MatchProbability:
    """Fit features and calibrator of the smallest cross-validated log loss; a query counts once.

    Pairs of one query stay in one fold. Where fewer than five queries have a pair of either kind,
    the first set is taken.

    Parameters
    ----------
    features : PairFeatures
        Features of [Q, k] pairs.
    judged : [Q, k]
        Truth about each pair: 1 for a match, 0 for none, anything else where it is not known.
    sets : dict of name to Prior
        Sets of features; the first is that of few queries.
    tried : tuple of names
        Sets that are tried.
    like : MatchProbability, optional
        Fit to more queries, whose choice is taken over. None, the default: it is made here.

    Raises
    ------
    InputError
        If no pair is judged.
    """
    use = features.exists & (judged >= 0)
    x, y = features.values[use], (judged[use] == 1).astype(np.float64)
    groups = np.unique(use.nonzero()[0], return_inverse=True)[1]
    if not len(y):
        raise InputError("relevant: no hit is judged. Pass hits with a judgement.")
    pairs = _Pairs(x, y, groups, 1 / np.bincount(groups)[groups])
    least = fewest(y, groups)
    many = least >= ENOUGH
    if like is not None:
        chosen, losses = like.chosen, like.losses
    else:
        names = [name for name in CALIBRATORS if name != "isotonic" or many]
        if least < FOLDS:
            tried, names = (next(iter(sets)),), ["logistic"]
        losses = _cross_validated(pairs, {name: sets[name] for name in tried}, names, many)
        # rounded: losses that differ by an optimiser's rounding are equal, the first is simplest
        chosen = min(losses, key=lambda key: round(losses[key][0], 9))
    of, name = chosen.split(", ")
    return MatchProbability(chosen, *_fitted(pairs, sets[of], name, many), losses)


def _warn_of_few(kinds: tuple[int, int], n: int) -> None:
    what = "a match" if kinds[0] < kinds[1] else "anything else"
    warnings.warn(
        f"{min(kinds)} of the {n} queries that fit the match probability have {what} among their "
        f"neighbours, too few to determine how it falls with the distance: at least {FOLDS} are "
        "needed. It falls with the distance as it does on other data. Calibrate on more queries.",
        FewQueriesWarning,
        stacklevel=callers_line(),
    )


def fewest(relevant: Array, queries: npt.NDArray[np.int_]) -> int:
    """Count the queries with a pair of the rarer kind, match or not.

    Parameters
    ----------
    relevant, queries : [n]
        Relevance, 1 or 0, of each pair, and the number of its query.
    """
    return min(len(np.unique(queries[relevant == kind])) for kind in (1, 0))


@dataclass(frozen=True)
class _Pairs:
    """Features, outcome, query and weight of n judged pairs; those of one query weigh 1."""

    x: Array
    y: Array
    groups: npt.NDArray[np.intp]
    weight: Array

    def take(self, rows: npt.NDArray[np.bool_]) -> _Pairs:
        return _Pairs(self.x[rows], self.y[rows], self.groups[rows], self.weight[rows])


def _fitted(pairs: _Pairs, prior: Prior, name: str, many: bool) -> tuple[Score, Calibrator]:
    width = prior.wide if many else prior.narrow
    score = fitted_score(pairs.x, pairs.y, pairs.weight, prior, width)
    return score, fit_calibrator(name, score(pairs.x), pairs.y, pairs.weight)


def query_folds(groups: npt.NDArray[np.int_]) -> Iterator[tuple[Flags, Flags]]:
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
    pairs: _Pairs, sets: Mapping[str, Prior], names: list[str], many: bool
) -> dict[str, tuple[float, float]]:
    """Return the mean held-out log loss of a query and its standard error, for each candidate.

    The first ``SELECTED`` pairs decide.
    """
    n = int(pairs.groups[-1]) + 1
    pairs = pairs.take(pairs.groups < max(LEAST, SELECTED * n // len(pairs.y)))
    loss = {f"{of}, {name}": np.empty(len(pairs.y)) for of in sets for name in names}
    for train, test in query_folds(pairs.groups):
        seen, new = pairs.take(train), pairs.take(test)
        for of, prior in sets.items():
            width = prior.wide if many else prior.narrow
            score = fitted_score(seen.x, seen.y, seen.weight, prior, width)
            known, asked = score(seen.x), score(new.x)
            for name in names:
                calibrator = fit_calibrator(name, known, seen.y, seen.weight)
                loss[f"{of}, {name}"][test] = _log_loss(calibrator(asked), new.y)
    found = {}
    for candidate, each in loss.items():
        of_queries = np.bincount(pairs.groups, each * pairs.weight)
        error = of_queries.std(ddof=1) / len(of_queries) ** 0.5
        found[candidate] = float(of_queries.mean()), float(error)
    return found


def _log_loss(probability: Array, match: Array) -> Array:
    return np.asarray(-np.log(np.where(match == 1, probability, 1 - probability).clip(min=1e-12)))
