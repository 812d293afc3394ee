"""From features of a pair to a probability: a score, then a one-dimensional calibrator.

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

Three calibrators of the score l, fitted by scikit-learn:

    logistic    sigmoid(l)                                          Platt 1999
    beta        sigmoid(a ln s - b ln(1 - s) + c), s = sigmoid(l)   Kull et al. 2017 (a, b >= 0)
    isotonic    non-decreasing, linear between its knots            Zadrozny & Elkan 2002

The beta calibrator has a Gaussian prior about a = b = 1, which changes nothing, of standard
deviation 1/2. Score and calibrator are a few numbers each, which can be written to a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import relu

from laplace_metric.calibration._hits import BOUNDED, FEATURE_SETS, FEATURES, LOGARITHMS

Array = npt.NDArray[np.float64]
SLOPE, WIDTH, WIDE = -1.5, 1.0, 100.0
"""Prior mean of the standardised weight of the distance; standard deviation of all weights, and
where queries are many: only there so that separable data have a solution."""
FLATTEST = SLOPE / 10
"""The score of the distance alone falls at least as fast as that: it never is a constant."""
BETA_WIDTH = 0.5
"""Prior standard deviation of a and b about 1."""


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


def logistic(logit: Array, match: Array, weight: Array) -> Calibrator:
    """Return the identity: the logit is calibrated already."""
    return Calibrator("logistic", torch.zeros(2, 0, dtype=torch.float64))


def beta(logit: Array, match: Array, weight: Array) -> Calibrator:
    """Kull et al. 2017, with a, b >= 0 as bounds."""
    terms, rising = _log_odds(torch.from_numpy(logit)).numpy(), [(0.0, np.inf)] * 2
    slopes, offset = posterior_mode(terms, match, weight, np.ones(2), BETA_WIDTH, rising)
    numbers = torch.zeros(2, 3, dtype=torch.float64)
    numbers[0] = torch.tensor([*slopes, offset])
    return Calibrator("beta", numbers)


def isotonic(logit: Array, match: Array, weight: Array) -> Calibrator:
    """Kept off 0 and 1 by as much as one more observation of either kind would."""
    from sklearn.isotonic import IsotonicRegression

    edge = 1 / (len(match) + 2)
    fit = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(logit, match)
    knots = np.stack([fit.X_thresholds_, fit.y_thresholds_])
    return Calibrator("isotonic", torch.from_numpy(knots.astype(np.float64)))


CALIBRATORS: dict[str, Callable[[Array, Array, Array], Calibrator]] = {
    "logistic": logistic,
    "beta": beta,
    "isotonic": isotonic,
}


def posterior_mode(
    x: Array,
    match: Array,
    weight: Array,
    centre: Array,
    width: float,
    bounds: list[tuple[float, float]],
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
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    def loss(at: Array) -> tuple[float, Array]:
        w, c = at[:-1], at[-1]
        score, gap = x @ w + c, (w - centre) / width
        value = weight @ (np.logaddexp(0, score) - match * score) + gap @ gap / 2
        residual = weight * (expit(score) - match)
        slope = np.append(x.T @ residual + gap / width, residual.sum() + expit(c) - 0.5)
        return value + np.logaddexp(0, c) - c / 2, slope

    precise = {"ftol": 1e-14, "gtol": 1e-8, "maxiter": 1000}
    start, within = np.append(centre, 0.0), [*bounds, (-np.inf, np.inf)]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=within, options=precise).x
    return best[:-1], float(best[-1])


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
    low[FEATURES.index("epistemic")] = -np.inf
    low[LOGARITHMS] = np.where(np.isfinite(middle), middle + np.log(FLOOR), 0.0)[LOGARITHMS]
    free = np.isin(np.arange(len(FEATURES)), BOUNDED)
    while True:
        bounded = np.minimum(np.maximum(values, low), cap)
        weights, offset = _standardised_regression(bounded, match, weight, columns, width)
        grows = (weights > 0) & np.isinf(cap) & ~free
        if not grows.any():
            w, least, most = map(torch.from_numpy, (weights, low, cap))
            return Score(w, least, most, offset)
        cap[grows] = np.maximum(middle, low)[grows]


def _standardised_regression(
    values: Array, match: Array, weight: Array, columns: list[int], width: float
) -> tuple[Array, float]:
    """Weights [F] and offset, found in units of the standard deviation."""
    x = values[:, columns]
    mean, scale = x.mean(0), x.std(0)
    scale[scale == 0] = 1.0
    centre = np.where(np.array(columns) == FEATURES.index("distance"), SLOPE, 0.0)
    most = np.where((centre < 0) & (columns == FEATURE_SETS["distance"]), FLATTEST, np.inf)
    bounds = [(-np.inf, float(end)) for end in most]
    found, offset = posterior_mode((x - mean) / scale, match, weight, centre, width, bounds)
    weights = np.zeros(len(FEATURES))
    weights[columns] = found / scale
    return weights, offset - float(weights[columns] @ mean)
