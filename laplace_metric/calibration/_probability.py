"""The probability that a query and its neighbour match: a score, then a one-dimensional calibrator.

The score is a logistic regression that does not run away, larger for a match:

    l = w . min(max(x, low), cap) + c

Its weights maximise a posterior, so that few queries, or queries without an error, still give a
score that falls with the distance. With s_j the standard deviation of feature j among the pairs,
k_q the neighbours of query q and a = c + w . mean(x) the score of the mean pair,

    sum_q 1/k_q sum_i log P(y_qi | l_qi) - sum_j (s_j w_j - m_j)^2 / 2 + log(s(a) s(-a)) / 2

A Gaussian prior of unit variance on standardised weights (Gelman et al. 2008 have a Cauchy one)
about m = -1.5 for the distance and 0 for all else, chosen on digits and FashionMNIST; and half a
match and half another at the mean pair, Jeffreys' prior of a share. A query counts once, however
many neighbours it has. The prior is worth a few queries: many outweigh it.

An unbounded feature that speaks for a match the larger it is (w > 0) counts up to its median on
held-out pairs, so that nothing looks like a match by being farther, or less certain, than any of
them; a feature against counts without end. (A feature that was capped stays so if its weight
changes sign when the others are capped, too.) ``low`` keeps a certainty of zero finite.

Three calibrators of the score l:

    logistic    sigmoid(l)                                          Platt 1999
    beta        sigmoid(a ln s - b ln(1 - s) + c), s = sigmoid(l)   Kull et al. 2017 (a, b >= 0)
    isotonic    non-decreasing, linear between its knots            Zadrozny & Elkan 2002

The beta calibrator has a Gaussian prior about a = b = 1, which changes nothing, of standard
deviation 1/2. Score and calibrator are a few numbers each, which can be written to a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric.calibration._hits import FEATURE_SETS, FEATURES, PairFeatures, namespace
from laplace_metric.errors import FewQueriesWarning, InputError, callers_line

Array = npt.NDArray[np.float64]
EVIDENCE, PORTABLE = "all", "portable"
"""Feature sets of a calibration, and of one that other engines can apply."""
CALIBRATORS = ("logistic", "beta", "isotonic")
FOLDS = 5
ENOUGH = 50
"""Queries of each kind, with a match and with anything else, from which on the prior is wide and a
step function is tried: of fewer, its ties lose the order of the distance (Niculescu-Mizil & Caruana
2005 want a thousand points)."""
SLOPE, WIDTH, WIDE = -1.5, 1.0, 3.0
"""Prior mean of the standardised weight of the distance; standard deviation of all weights, and
where queries are many."""
FLATTEST = SLOPE / 10
"""The score of the distance alone falls at least as fast as that: it never is a constant."""
BETA_WIDTH = 0.5
"""Prior standard deviation of a and b about 1."""
GAIN, HALVINGS = 1e-15, 30
"""Relative gain of the posterior in a step, below which its ascent ends; shorter steps tried."""
ROUNDING = 1e-7
"""Standard deviation of a constant feature at most, relative to its mean: that of float32."""
FLOOR = 1e-3
"""Of the median of a spread: below, a pair counts as that certain."""
SPREAD = FEATURES.index("spread")
"""A logarithm: -inf where a posterior is certain."""
BOUNDED = [
    FEATURES.index(n) for n in ("rank", "share", "weighted", "ratio", "ambiguity", "class_model")
]
"""Features that cannot run away."""


@dataclass(frozen=True)
class Score:
    """A linear score of bounded features.

    Parameters
    ----------
    weights, low, cap : [F]
        One number per feature: its weight, 0 where it is not used, and the bounds between which it
        counts; infinite where there is none.
    offset : float
    """

    weights: Float[np.ndarray, " F"]
    low: Float[np.ndarray, " F"]
    cap: Float[np.ndarray, " F"]
    offset: float

    def __call__(self, values: Any) -> Any:
        """l [...] of features [..., F]."""
        xp = namespace(values)
        bounded = xp.minimum(xp.maximum(values, self.low), self.cap)
        return (bounded * self.weights).sum(-1) + self.offset


@dataclass(frozen=True)
class Calibrator:
    """A fitted calibrator: its ``kind`` and its numbers.

    Parameters
    ----------
    kind : "logistic" | "beta" | "isotonic"
    numbers : [2, K]
        isotonic: the scores and probabilities of K knots; beta: (a, b, c) in the first row.
    """

    kind: str
    numbers: Float[np.ndarray, "2 K"]

    def __call__(self, logit: Any) -> Any:
        """Probabilities in (0, 1) of the scores' shape; finite scores."""
        if self.kind == "isotonic":
            return np.interp(logit, *self.numbers)
        if self.kind == "beta":
            a, b, c = self.numbers[0]
            rising, falling = _log_odds(logit)
            logit = a * rising + b * falling + c
        return sigmoid(logit)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))`` of an array or a tensor."""
    if namespace(x) is not np:
        return x.sigmoid()
    from scipy.special import expit

    return expit(x)


def _log_odds(logit: Any) -> tuple[Any, Any]:
    """``ln s`` and ``-ln(1 - s)``."""
    # written out: exported to ONNX, logsigmoid is Log(Sigmoid), which underflows at large scores
    xp = namespace(logit)
    rest = xp.log1p(xp.exp(-abs(logit)))
    return logit.clip(max=0) - rest, logit.clip(min=0) + rest


def fit_calibrator(kind: str, logit: Array, match: Array, weight: Array) -> Calibrator:
    """Fit one of ``CALIBRATORS`` to scores [n], whether they match [n] and what they count [n].

    The isotonic one is kept off 0 and 1 by as much as one more observation of either kind would.
    """
    if kind == "logistic":  # calibrated already
        return Calibrator(kind, np.zeros((2, 0)))
    if kind == "beta":
        terms, rising = np.stack(_log_odds(logit), -1), [(0.0, np.inf)] * 2
        slopes, offset = posterior_mode(terms, match, weight, np.ones(2), BETA_WIDTH, rising)
        return Calibrator(kind, np.array([[*slopes, offset], [0.0] * 3]))
    from scipy.optimize import isotonic_regression

    knots, place, count = np.unique(logit, return_inverse=True, return_counts=True)
    edge, mean = 1 / (len(match) + 2), np.bincount(place, match) / count
    steps = isotonic_regression(mean, weights=count).x.clip(edge, 1 - edge)
    ends = np.ones(len(knots), bool)  # a knot between two of the same height says nothing
    ends[1:-1] = (steps[1:-1] != steps[:-2]) | (steps[1:-1] != steps[2:])
    return Calibrator(kind, np.stack([knots[ends], steps[ends]]))


def posterior_mode(
    x: Array,
    match: Array,
    weight: Array,
    centre: Array,
    width: float,
    bounds: list[tuple[float, float]],
    standardised: bool = False,
) -> tuple[Array, float]:
    """Return the weights [F] and the offset of a logistic regression with a Gaussian prior.

    Parameters
    ----------
    x : [n, F]
    match : [n]
        0 or 1.
    weight : [n]
        Observations that each row counts for.
    centre : [F]
        Prior mean of the weights.
    width : float
        Prior standard deviation of each. The offset has Jeffreys' prior.
    bounds : F pairs
        Least and largest value of each weight.
    standardised : bool
        Whether prior and bounds are those of features in units of their standard deviation.
    """
    from scipy.special import expit

    mean, scale = np.zeros(len(centre)), np.ones(len(centre))
    if standardised:
        mean, scale = x.mean(0), x.std(0)
        # a constant column has the spread of its rounding: as a unit it would give weights of 1e15
        constant = scale <= ROUNDING * np.abs(mean)
        scale = np.where(constant, 1.0, scale)
        x = np.where(constant, 0.0, (x - mean) / scale)
    rows = np.column_stack([x, np.ones(len(x))])
    low, high = np.transpose([*bounds, (-np.inf, np.inf)])
    middle, precision = np.append(centre, 0.0), np.append(np.full(len(centre), width**-2.0), 0.0)

    def loss(at: Array) -> float:
        score, c = rows @ at, at[-1]
        value = weight @ (np.logaddexp(0, score) - match * score)
        return float(value + precision @ (at - middle) ** 2 / 2 + np.logaddexp(0, c) - c / 2)

    at = middle.clip(low, high)
    value, gain = loss(at), np.inf
    while gain > GAIN * value:  # Newton steps within the bounds, halved until they gain
        p, share = expit(rows @ at), expit(at[-1])
        slope = rows.T @ (weight * (p - match)) + precision * (at - middle)
        curvature = (rows.T * (weight * p * (1 - p))) @ rows + np.diag(precision)
        slope[-1] += share - 0.5
        curvature[-1, -1] += share * (1 - share)
        free, step = np.where(slope > 0, at > low, at < high), np.zeros_like(at)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
        for _ in range(HALVINGS):
            after = (at - step).clip(low, high)
            gain = value - loss(after)
            if gain > 0:
                at, value = after, value - gain
                break
            step /= 2
    weights = at[:-1] / scale
    return weights, float(at[-1] - weights @ mean)


def fit_score(
    values: Array, match: Array, weight: Array, columns: list[int], width: float = WIDTH
) -> Score:
    """From features [n, F] of pairs and whether they match [n], by some columns of it.

    Parameters
    ----------
    weight : [n]
        What each pair counts for: 1 / k, of k pairs of its query.
    width : float
        Standard deviation of the prior of the standardised weights.
    """
    middle = np.median(values, 0)
    low, cap = np.zeros(len(FEATURES)), np.full(len(FEATURES), np.inf)
    low[[FEATURES.index("epistemic"), FEATURES.index("class_model")]] = -np.inf
    low[SPREAD] = middle[SPREAD] + np.log(FLOOR) if np.isfinite(middle[SPREAD]) else 0.0
    free = np.isin(np.arange(len(FEATURES)), BOUNDED)
    while True:
        bounded = np.minimum(np.maximum(values, low), cap)
        weights, offset = _standardised_regression(bounded, match, weight, columns, width)
        grows = (weights > 0) & np.isinf(cap) & ~free
        if not grows.any():
            return Score(weights, low, cap, offset)
        cap[grows] = np.maximum(middle, low)[grows]


def _standardised_regression(
    values: Array, match: Array, weight: Array, columns: list[int], width: float
) -> tuple[Array, float]:
    """Weights [F] and offset, found in units of the standard deviation."""
    centre = np.where(np.array(columns) == FEATURES.index("distance"), SLOPE, 0.0)
    most = np.where((centre < 0) & (columns == FEATURE_SETS["distance"]), FLATTEST, np.inf)
    bounds = [(-np.inf, float(end)) for end in most]
    weights = np.zeros(len(FEATURES))
    x = values[:, columns]
    weights[columns], offset = posterior_mode(x, match, weight, centre, width, bounds, True)
    return weights, offset


@dataclass(frozen=True)
class MatchProbability:
    """``p = calibrator(score(features))``.

    Parameters
    ----------
    feature_set : "distance" | "all" | "portable"
        The features that it uses.
    score : Score
    calibrator : Calibrator
    losses : dict of calibrator to (log loss, standard error)
        Cross-validated, of every candidate; the smallest was chosen.
    """

    feature_set: str
    score: Score
    calibrator: Calibrator
    losses: dict[str, tuple[float, float]]

    def logit(self, features: PairFeatures) -> Float[np.ndarray, "Q k"]:
        """The score of each pair [Q, k], larger for a match; -inf where there is no neighbour."""
        return np.where(features.exists, self.score(features.values), -np.inf)

    def __call__(self, logit: Any) -> Any:
        """[...] in [0, 1] of such scores; 0 where there is no neighbour, NaN of NaN."""
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
    features : PairFeatures of [Q, k] pairs
    match : [Q, k]
        Whether their labels agree.
    portable : bool
        Leave out what only the index knows.
    like : MatchProbability, optional
        One that was fitted to more queries, whose evidence and calibrator are taken over.

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
    """Rows [n] to train on and to test with, as masks; the rows of a query stay together.

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
    """Mean log loss of held-out pairs and its standard error over queries, of each calibrator."""
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
