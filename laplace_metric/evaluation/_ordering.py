"""Orderings by a score whose ties are averaged over every random order, exactly."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ties(scores: Tensor, values: Tensor) -> Tensor:
    """Each value [Q] replaced by the mean of its tie group: its expectation in a random order."""
    _, groups, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    sums = torch.zeros(counts.shape[0], dtype=values.dtype, device=values.device)
    means: Tensor = sums.index_add(0, groups, values) / counts
    return means[groups]


def mean_of_lowest(scores: Tensor, values: Tensor, kept: Tensor) -> Tensor:
    """Expected mean of the ``kept`` [T] values whose scores are lowest, ties in random order."""
    ordered = average_ties(scores, values)[scores.argsort()]
    return ordered.cumsum(0)[kept - 1] / kept


def mean_height(x: Tensor, y: Tensor) -> float:
    """Trapezoidal area under y(x) divided by the width of x."""
    return float((torch.trapezoid(y, x) / (x[-1] - x[0])).abs())
