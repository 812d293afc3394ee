"""From a score to a probability: three one-dimensional calibrations, fitted by scikit-learn.

    logistic    sigmoid(l)                                          Platt 1999
    beta        sigmoid(a ln s - b ln(1 - s) + c), s = sigmoid(l)   Kull et al. 2017 (a, b >= 0)
    isotonic    non-decreasing, linear between its knots            Zadrozny & Elkan 2002

of the score l of a logistic regression. Each is a few numbers that can be written to a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Array = npt.NDArray[np.float64]
WEAK = 1e4
"""Inverse strength of the penalty: only there so that separable data have a solution."""


@dataclass(frozen=True)
class Map:
    """A fitted map: its ``kind`` and its numbers.

    Parameters
    ----------
    kind : "logistic" | "beta" | "isotonic"
    numbers : Tensor [2, K], float64
        isotonic: the scores and probabilities of K knots; beta: (a, b, c) in the first row.
    """

    kind: str
    numbers: Tensor

    def __call__(self, logit: Tensor) -> Tensor:
        """Probabilities in (0, 1) of the scores' shape, float64."""
        return _APPLY[self.kind](logit.double(), self.numbers.to(logit.device))


def logistic(logit: Array, match: Array) -> Map:
    """Nothing is left to fit."""
    return Map("logistic", torch.zeros(2, 0, dtype=torch.float64))


def beta(logit: Array, match: Array) -> Map:
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
    return Map("beta", numbers)


def isotonic(logit: Array, match: Array) -> Map:
    """Kept off 0 and 1 by as much as one more observation of either kind would."""
    from sklearn.isotonic import IsotonicRegression

    edge = 1 / (len(match) + 2)
    fit = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(logit, match)
    knots = np.stack([fit.X_thresholds_, fit.y_thresholds_])
    return Map("isotonic", torch.from_numpy(knots.astype(np.float64)))


MAPS: dict[str, Callable[[Array, Array], Map]] = {
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
    return torch.stack([logsigmoid(logit), -logsigmoid(-logit)], -1)


def _apply_beta(logit: Tensor, numbers: Tensor) -> Tensor:
    return torch.sigmoid(_log_odds(logit) @ numbers[0, :2] + numbers[0, 2])


def _apply_isotonic(logit: Tensor, numbers: Tensor) -> Tensor:
    x, y = numbers.cpu().numpy()
    found = np.interp(logit.cpu().numpy(), x, y)
    return torch.as_tensor(found, device=logit.device)


_APPLY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logistic": lambda logit, _: torch.sigmoid(logit),
    "beta": _apply_beta,
    "isotonic": _apply_isotonic,
}
