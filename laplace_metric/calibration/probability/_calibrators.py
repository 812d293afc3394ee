"""One-dimensional calibrators: a score -> a probability.

Three calibrators of the score l:

    logistic    sigmoid(l)                                          Platt 1999
    beta        sigmoid(a ln s - b ln(1 - s) + c), s = sigmoid(l)   Kull et al. 2017 (a, b >= 0)
    isotonic    non-decreasing, linear between its knots            Zadrozny & Elkan 2002

The beta calibrator has a Gaussian prior about a = b = 1, which changes nothing, of standard
deviation 1/2. Score and calibrator are a few numbers each, which can be written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.calibration.probability._logistic_score import Array, posterior_mode
from laplace_metric.errors import FileFormatError

CALIBRATORS = ("logistic", "beta", "isotonic")
BETA_WIDTH = 0.5
"""Prior standard deviation of a and b about 1."""


@dataclass(frozen=True)
class Calibrator:
    """A fitted calibrator: its ``kind`` and its numbers.

    Parameters
    ----------
    kind : "logistic" | "beta" | "isotonic"
        Name of the calibrator.
    numbers : [2, K]
        Fitted numbers: scores and probabilities of K knots for "isotonic"; (a, b, c) in the first
        row for "beta".
    """

    kind: str
    numbers: Float[np.ndarray, "2 K"]

    def check_saved(self) -> None:
        """Refuse numbers of a file that are not those of its kind."""
        width = {"logistic": 0, "beta": 3}.get(self.kind, max(1, self.numbers.shape[1]))
        rises = (np.diff(self.numbers) >= 0).all() and ((self.numbers[1] >= 0).all())
        knots = self.kind != "isotonic" or (rises and (self.numbers[1] <= 1).all())
        if self.kind not in CALIBRATORS or self.numbers.shape[1] != width or not knots:
            raise FileFormatError(f"calibrator {self.kind!r:.60} has not the numbers of its kind")

    def __call__(self, logit: Any) -> Any:
        """Return probabilities in (0, 1) of finite scores, of their shape."""
        if self.kind == "isotonic":
            return np.interp(logit, *self.numbers)
        if self.kind == "beta":
            a, b, c = self.numbers[0]
            rising, falling = _log_odds(logit)
            logit = a * rising + b * falling + c
        return sigmoid(logit)


def sigmoid(x: Any) -> Any:
    """Return ``1 / (1 + exp(-x))`` of an array or a tensor."""
    if namespace(x) is not np:
        return x.sigmoid()
    small = np.exp(-np.abs(x))  # scipy.special.expit is the same, and takes long to import
    return np.where(x >= 0, 1.0, small) / (1 + small)


def _log_odds(logit: Any) -> tuple[Any, Any]:
    """Return ``ln s`` and ``-ln(1 - s)``."""
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
