"""From features of a pair to a probability: a score, then a one-dimensional calibrator.

The score is a logistic regression that does not run away, larger for a match:

    l = w . min(max(x, low), cap) + c

An unbounded feature that speaks for a match the larger it is (w > 0) counts up to its median on
held-out pairs, so that nothing looks like a match by being farther, or less certain, than any of
them; a feature against counts without end. (A feature that was capped stays so if its weight
changes sign when the others are capped, too.) ``low`` keeps a certainty of zero finite.

Three calibrators of the score l, fitted by scikit-learn:

    logistic    sigmoid(l)                                          Platt 1999
    beta        sigmoid(a ln s - b ln(1 - s) + c), s = sigmoid(l)   Kull et al. 2017 (a, b >= 0)
    isotonic    non-decreasing, linear between its knots            Zadrozny & Elkan 2002

Where all pairs match, or none, the score is a constant: with s of n, ``logit((s + 1/2) / (n + 1))``
(Jeffreys' prior). Score and calibrator are a few numbers each, which can be written to a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import relu

from laplace_metric.search.match._hits import BOUNDED, FEATURES, LOGARITHMS

Array = npt.NDArray[np.float64]
WEAK = 1e4
"""Inverse strength of the penalty: only there so that separable data have a solution."""


@dataclass(frozen=True)
class Calibrator:
    """A fitted calibrator: its ``kind`` and its numbers.

    Parameters
    ----------
    kind : "logistic" | "beta" | "isotonic"
    numbers : Tensor [2, K], float64
        isotonic: the scores and probabilities of K knots; beta: (a, b, c) in the first row.
    """

    kind: str
    numbers: Float[Tensor, "2 K"]

    def __call__(self, logit: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Probabilities in (0, 1) of the scores' shape, float64."""
        return _APPLY[self.kind](logit.double(), self.numbers.to(logit.device))


def logistic(logit: Array, match: Array) -> Calibrator:
    """Nothing is left to fit."""
    return Calibrator("logistic", torch.zeros(2, 0, dtype=torch.float64))


def beta(logit: Array, match: Array) -> Calibrator:
    """Kull et al. 2017, algorithm 1: where a or b would be negative, it is left out."""
    columns = [0, 1]
    terms = _log_odds(torch.from_numpy(logit)).numpy()
    slopes, offset = _regression(terms, match)
    if (slopes < 0).any():
        columns = [int(slopes.argmax())]
        slopes, offset = _regression(terms[:, columns], match)
    if (slopes < 0).any():
        slopes, offset = np.zeros(1), float(np.log(match.mean() / (1 - match.mean())))
    numbers = torch.zeros(2, 3, dtype=torch.float64)
    numbers[0, columns] = torch.from_numpy(slopes)
    numbers[0, 2] = offset
    return Calibrator("beta", numbers)


def isotonic(logit: Array, match: Array) -> Calibrator:
    """Kept off 0 and 1 by as much as one more observation of either kind would."""
    from sklearn.isotonic import IsotonicRegression

    edge = 1 / (len(match) + 2)
    fit = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(logit, match)
    knots = np.stack([fit.X_thresholds_, fit.y_thresholds_])
    return Calibrator("isotonic", torch.from_numpy(knots.astype(np.float64)))


CALIBRATORS: dict[str, Callable[[Array, Array], Calibrator]] = {
    "logistic": logistic,
    "beta": beta,
    "isotonic": isotonic,
}


def _regression(terms: Array, match: Array) -> tuple[Array, float]:
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(C=WEAK, max_iter=1000).fit(terms, match)
    return fit.coef_[0].astype(np.float64), float(fit.intercept_[0])


def _log_odds(logit: Tensor) -> Tensor:
    """``ln s`` and ``-ln(1 - s)`` [..., 2]."""
    # written out: exported to ONNX, logsigmoid is Log(Sigmoid), which underflows at large scores
    rest = torch.log1p(torch.exp(-logit.abs()))
    return torch.stack([-relu(-logit) - rest, relu(logit) + rest], -1)


def _apply_beta(logit: Tensor, numbers: Tensor) -> Tensor:
    return torch.sigmoid(_log_odds(logit) @ numbers[0, :2] + numbers[0, 2])


def _apply_isotonic(logit: Tensor, numbers: Tensor) -> Tensor:
    scores, probabilities = numbers.cpu().numpy()
    interpolated = np.interp(logit.cpu().numpy(), scores, probabilities)
    return torch.as_tensor(interpolated, device=logit.device)


_APPLY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logistic": lambda logit, _: torch.sigmoid(logit),
    "beta": _apply_beta,
    "isotonic": _apply_isotonic,
}


FLOOR = 1e-3
"""Of the median of a spread: below, a pair counts as that certain."""


@dataclass(frozen=True)
class Score:
    """Fitted numbers, one a feature; unused features have weight 0.

    Parameters
    ----------
    weights, low, cap : Tensor [F], float64
        A feature counts between ``low`` and ``cap``; either is infinite where there is no bound.
    offset : float
    """

    weights: Float[Tensor, " F"]
    low: Float[Tensor, " F"]
    cap: Float[Tensor, " F"]
    offset: float

    def __call__(self, values: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        """l [...] of features [..., F]."""
        bounded = values.maximum(self.low.to(values)).minimum(self.cap.to(values))
        return bounded @ self.weights.to(values) + self.offset


def constant_score(successes: float, n: float) -> Score:
    """The same for every pair."""
    zero = torch.zeros(len(FEATURES), dtype=torch.float64)
    offset = float(np.log((successes + 0.5) / (n - successes + 0.5)))
    return Score(zero, zero.clone(), zero + torch.inf, offset)  # a file refuses shared memory


def fit_score(values: Array, match: Array, columns: list[int]) -> Score:
    """From features [n, F] of pairs and whether they match [n], by some columns of it."""
    middle = np.median(values, 0)
    low, cap = np.zeros(len(FEATURES)), np.full(len(FEATURES), np.inf)
    low[FEATURES.index("epistemic")] = -np.inf
    low[LOGARITHMS] = np.where(np.isfinite(middle), middle + np.log(FLOOR), 0.0)[LOGARITHMS]
    free = np.isin(np.arange(len(FEATURES)), BOUNDED)
    while True:
        bounded = np.minimum(np.maximum(values, low), cap)
        weights, offset = _standardised_regression(bounded, match, columns)
        grows = (weights > 0) & np.isinf(cap) & ~free
        if not grows.any():
            w, least, most = map(torch.from_numpy, (weights, low, cap))
            return Score(w, least, most, offset)
        cap[grows] = np.maximum(middle, low)[grows]


def _standardised_regression(
    values: Array, match: Array, columns: list[int]
) -> tuple[Array, float]:
    """Weights [F] and offset, found in units of the standard deviation."""
    from sklearn.linear_model import LogisticRegression

    x = values[:, columns]
    mean, scale = x.mean(0), x.std(0)
    scale[scale == 0] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # separable pairs end at the iteration limit
        fit = LogisticRegression(C=WEAK, max_iter=1000).fit((x - mean) / scale, match)
    weights = np.zeros(len(FEATURES))
    weights[columns] = fit.coef_[0] / scale
    return weights, float(fit.intercept_[0] - weights[columns] @ mean)
