"""A logistic score that does not run away, larger for a match.

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
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.calibration.probability._features import FEATURE_SETS, FEATURES
from laplace_metric.errors import FileFormatError
from laplace_metric.io import saved

Array = npt.NDArray[np.float64]
SLOPE, WIDTH, WIDE = -1.5, 1.0, 3.0
"""Prior mean of the standardised weight of the distance; standard deviation of all weights, and
where queries are many."""
FLATTEST = SLOPE / 10
"""The score of the distance alone falls at least as fast as that: it never is a constant."""
GAIN, HALVINGS = 1e-13, 30
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
        One number per feature: its weight, 0 if it is not used, and the bounds between which it
        counts, infinite without a bound.
    offset : float
        Constant that is added.
    """

    weights: Float[np.ndarray, " F"]
    low: Float[np.ndarray, " F"] = saved(most=sys.float_info.max, infinite=True)
    cap: Float[np.ndarray, " F"] = saved(least=-sys.float_info.max, infinite=True)
    offset: float = saved()

    def check_saved(self) -> None:
        """Refuse bounds of a file that cross."""
        if (self.low > self.cap).any():
            raise FileFormatError("score/low is above score/cap")

    def __call__(self, values: Any) -> Any:
        """Return the score l [...] of features [..., F]."""
        xp = namespace(values)
        bounded = xp.minimum(xp.maximum(values, self.low), self.cap)
        return (bounded * self.weights).sum(-1) + self.offset


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
        Features of each row.
    match : [n]
        Outcome of each row, 0 or 1.
    weight : [n]
        Observations that each row counts for.
    centre : [F]
        Prior mean of the weights.
    width : float
        Prior standard deviation of each. The offset has Jeffreys' prior.
    bounds : F pairs
        Least and largest value of each weight.
    standardised : bool
        True if prior and bounds are those of features in units of their standard deviation.
        Default: False.
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
        if slope @ step <= 2 * GAIN * value:  # the gain that Newton's model promises
            break
        for _ in range(HALVINGS):
            after = (at - step).clip(low, high)
            gain = value - loss(after)
            if gain > 0:
                at, value = after, value - gain
                break
            step /= 2
    weights = at[:-1] / scale
    return weights, float(at[-1] - weights @ mean)


@dataclass(frozen=True)
class Prior:
    """Features that a score may use, and the prior of their standardised weights.

    Parameters
    ----------
    columns : list of int
        Features that are used; the others have weight 0.
    centre : [C]
        Prior mean of the weight of each column.
    least, most : [C]
        Bounds of each weight.
    narrow, wide : float
        Prior standard deviation of the weights, and where queries are many.
    limits : function or None
        Function of values [n, F] that returns their lower bounds [F], and which features [F] cannot
        run away. None, the default: none has bounds.
    """

    columns: list[int]
    centre: Array
    least: Array
    most: Array
    narrow: float
    wide: float
    limits: Callable[[Array], tuple[Array, npt.NDArray[np.bool_]]] | None = None


def fitted_score(values: Array, match: Array, weight: Array, prior: Prior, width: float) -> Score:
    """Fit a score to features [n, F] of pairs and whether they match [n].

    Parameters
    ----------
    values : [n, F]
        Features of each pair.
    match : [n]
        Outcome of each pair, 0 or 1.
    weight : [n]
        Observations that each pair counts for: 1 / k, for k pairs of its query.
    prior : Prior
        Features that are used, and the prior of their weights.
    width : float
        Standard deviation of the prior of the standardised weights.
    """
    n, columns = values.shape[1], prior.columns
    low, cap, free = np.full(n, -np.inf), np.full(n, np.inf), np.ones(n, bool)
    if prior.limits is not None:
        low, free = prior.limits(values)
    bounds = [*zip(prior.least.tolist(), prior.most.tolist(), strict=True)]
    while True:
        weights, bounded = np.zeros(n), np.minimum(np.maximum(values, low), cap)[:, columns]
        weights[columns], offset = posterior_mode(
            bounded, match, weight, prior.centre, width, bounds, True
        )
        grows = (weights > 0) & np.isinf(cap) & ~free
        if not grows.any():
            return Score(weights, low, cap, offset)
        cap[grows] = np.maximum(np.median(values, 0), low)[grows]


def hit_prior(columns: list[int]) -> Prior:
    """Return the prior of features of hits, ``FEATURES``."""
    centre = np.where(np.array(columns) == FEATURES.index("distance"), SLOPE, 0.0)
    most = np.where((centre < 0) & (columns == FEATURE_SETS["distance"]), FLATTEST, np.inf)
    least = np.full(len(columns), -np.inf)
    return Prior(columns, centre, least, most, WIDTH, WIDE, _limits_of_hits)


def _limits_of_hits(values: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    middle, low = np.median(values[:, SPREAD]), np.zeros(len(FEATURES))
    low[[FEATURES.index("epistemic"), FEATURES.index("class_model")]] = -np.inf
    low[SPREAD] = middle + np.log(FLOOR) if np.isfinite(middle) else 0.0
    return low, np.isin(np.arange(len(FEATURES)), BOUNDED)


def fit_score(
    values: Array, match: Array, weight: Array, columns: list[int], width: float = WIDTH
) -> Score:
    """Fit a score to ``FEATURES`` [n, F] of hits, as ``fitted_score``.

    Parameters
    ----------
    values : [n, F]
        Features of each pair.
    match : [n]
        Outcome of each pair, 0 or 1.
    weight : [n]
        Observations that each pair counts for.
    columns : list of int
        Features that are used; the others have weight 0.
    width : float
        Standard deviation of the prior of the standardised weights. Default: ``WIDTH``.
    """
    return fitted_score(values, match, weight, hit_prior(columns), width)
