"""Split conformal prediction: ranks among held-out scores, valid for any model.

If a new score is exchangeable with n held-out ones (the queries come from the same source, in no
particular order, and the gallery is the same), then

    P(p <= alpha) <= alpha    for p = (1 + #{i : s_i <= s}) / (n + 1)
    1 - alpha <= P(s >= q) <= 1 - alpha + 1 / (n + 1)
                              for the k-th smallest score q, k = floor(alpha (n + 1))

the last without ties (Vovk et al. 2005; Lei et al. 2018). On average over held-out sets and
queries: neither for one class nor for one held-out set. Drift, another gallery, repeated or
neighbouring frames of one video break it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from laplace_metric.errors import InputError


def p_values(held_out: Tensor, scores: Tensor) -> Tensor:
    """p [Q] of scores [Q], small where they are low among ``held_out`` [n].

    Examples
    --------
    >>> p_values(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.5, 9.0]))
    tensor([0.2500, 0.7500, 1.0000], dtype=torch.float64)
    """
    below = torch.searchsorted(held_out.sort().values, scores.contiguous(), right=True)
    return (1 + below).double() / (len(held_out) + 1)


def lowest_typical(held_out: Tensor, alpha: float) -> float:
    """q, so that a new score is at least q with probability 1 - alpha or more; -inf for few scores.

    Examples
    --------
    >>> lowest_typical(torch.arange(1.0, 20.0), 0.1)
    2.0
    """
    check_alpha(alpha)
    n = len(held_out)
    k = min(n, math.floor(alpha * (n + 1) * (1 + 1e-12)))  # 0.1 * 20 is 2 also in floats
    return -math.inf if k == 0 else float(held_out.sort().values[k - 1])


def check_alpha(alpha: float) -> None:
    """``InputError`` unless it lies between 0 and 1."""
    if not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise InputError(f"alpha={alpha!r}: pass a number between 0 and 1.")
