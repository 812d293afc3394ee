"""A score of each pair, larger for a match: a logistic regression that does not run away.

    l = w . min(max(e, low), cap) + c

Evidence that speaks for a match the larger it is (w > 0) counts up to its median on held-out pairs,
so that nothing looks like a match by being farther, or less certain, than anything seen before;
evidence against counts without end. (Evidence that was capped stays so if its weight changes sign
when the others are capped, too.) ``low`` keeps a certainty of zero finite.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from laplace_metric.matching.evidence import NAMES
from laplace_metric.matching.maps import WEAK, Array

FLOOR = 1e-3
"""Of the median of a spread: below, a pair counts as that certain."""


@dataclass(frozen=True)
class Score:
    """Fitted numbers, one an entry of the evidence [4]; unused evidence has weight 0.

    Parameters
    ----------
    weights, low, cap : Tensor [4], float64
    offset : float
    """

    weights: Tensor
    low: Tensor
    cap: Tensor
    offset: float

    def __call__(self, values: Tensor) -> Tensor:
        """l [...] of evidence [..., 4]."""
        seen = values.maximum(self.low.to(values)).minimum(self.cap.to(values))
        return seen @ self.weights.to(values) + self.offset


def fit_score(values: Array, match: Array, columns: list[int]) -> Score:
    """From evidence [n, 4] of pairs and whether they match [n], by some columns of it."""
    middle = np.median(values, 0)
    low = np.where(np.isfinite(middle), middle + np.log(FLOOR), 0.0)
    low[[NAMES.index("distance"), NAMES.index("rank")]] = 0.0
    cap, free = np.full(len(NAMES), np.inf), np.arange(len(NAMES)) == NAMES.index("rank")
    while True:
        seen = np.minimum(np.maximum(values, low), cap)
        weights, offset = _regression(seen, match, columns)
        grows = (weights > 0) & np.isinf(cap) & ~free
        if not grows.any():
            w, least, most = map(torch.from_numpy, (weights, low, cap))
            return Score(w, least, most, offset)
        cap[grows] = np.maximum(middle, low)[grows]


def _regression(values: Array, match: Array, columns: list[int]) -> tuple[Array, float]:
    """Weights [4] and offset, found in units of the standard deviation."""
    from sklearn.linear_model import LogisticRegression

    x = values[:, columns]
    mean, scale = x.mean(0), x.std(0)
    scale[scale == 0] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # separable pairs end at the iteration limit
        fit = LogisticRegression(C=WEAK, max_iter=1000).fit((x - mean) / scale, match)
    weights = np.zeros(len(NAMES))
    weights[columns] = fit.coef_[0] / scale
    return weights, float(fit.intercept_[0] - weights[columns] @ mean)
