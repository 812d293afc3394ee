"""Mean scores of the queries of lowest uncertainty, with ties in random order.

Every curve is its exact expectation over the order of tied queries.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def average_ties(scores: Float[Tensor, " Q"], values: Float[Tensor, " Q"]) -> Float[Tensor, " Q"]:
    """Replace each value [Q] by the mean of its tie group: its expectation in a random order."""
    _, groups, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    sums = torch.zeros(counts.shape[0], dtype=values.dtype, device=values.device)
    means: Tensor = sums.index_add(0, groups, values) / counts
    return means[groups]


def mean_of_lowest(
    scores: Float[Tensor, " Q"], values: Float[Tensor, " Q"], counts: Int[Tensor, " T"]
) -> Float[Tensor, " T"]:
    """Return the expected mean of the ``counts`` [T] values of lowest scores; ties are random."""
    ordered = average_ties(scores, values)[scores.argsort()]
    return ordered.cumsum(0)[counts - 1] / counts


def mean_height(x: Float[Tensor, " T"], y: Float[Tensor, " T"]) -> float:
    """Return the trapezoidal area under y(x) divided by the width of x."""
    return float((torch.trapezoid(y, x) / (x[-1] - x[0])).abs())
