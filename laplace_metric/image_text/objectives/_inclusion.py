"""Inclusion of one Gaussian in another, both with diagonal covariances, in closed form.

With ``v = sigma^2``, ``l = log v`` and ``d = mu_1 - mu_2``, a sum over dimensions of

    inc(1, 2) = log int p_1^2 p_2
              = -(log 4 pi + l_1) / 2 - (log pi + S) / 2 - d^2 exp(-S),  S = log(v_1 + 2 v_2)

    H(1, 2) = inc(1, 2) - inc(2, 1)
            = [l_2 - l_1 + log(2 v_1 + v_2) - log(v_1 + 2 v_2)] / 2
              + d^2 (v_2 - v_1) / ((v_1 + 2 v_2) (2 v_1 + v_2))

(Chun et al. 2025, eqs 3 and 4, whose ``-2 log v_1 - log v_2`` is half of what it prints.) S is
computed by ``logaddexp``, and H is divided through by ``exp(max(l_1, l_2))``: v itself underflows.

H is no test of inclusion: in each dimension it has the sign of ``v_2 - v_1`` whatever the means,
and it grows with their distance. Show it next to random pairs; ``inc`` responds to the means.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError

LOG_2, LOG_PI, LOG_4_PI = math.log(2), math.log(math.pi), math.log(4 * math.pi)


def log_inclusion(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
) -> Float[Tensor, "*B"]:
    """Return ``inc(1, 2) = log int p_1^2 p_2`` [...] in nats: large if 1 lies inside 2.

    Parameters
    ----------
    mu_1, log_v_1 : Tensor [..., D]
        Means and log variances of the specific Gaussians.
    mu_2, log_v_2 : Tensor [..., D]
        Means and log variances of the general Gaussians.

    Examples
    --------
    >>> mu, wide, narrow = torch.zeros(1, 1), torch.zeros(1, 1), torch.full((1, 1), -4.0)
    >>> bool(log_inclusion(mu, narrow, mu, wide) > log_inclusion(mu, wide, mu, narrow))
    True
    """
    s = torch.logaddexp(log_v_1, log_v_2 + LOG_2)
    d = mu_1 - mu_2
    inc = -(LOG_4_PI + log_v_1) / 2 - (LOG_PI + s) / 2 - (d * (-s / 2).exp()).square()
    return inc.sum(-1)


def inclusion_difference(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
) -> Float[Tensor, "*B"]:
    """Return ``H(1, 2) = inc(1, 2) - inc(2, 1)`` [...] in nats: above 0 if 2 is the wider one.

    Parameters
    ----------
    mu_1, log_v_1 : Tensor [..., D]
        Means and log variances of the first Gaussians.
    mu_2, log_v_2 : Tensor [..., D]
        Means and log variances of the second Gaussians.

    Examples
    --------
    >>> mu, wide = torch.zeros(1, 1), torch.zeros(1, 1)
    >>> bool(inclusion_difference(mu, wide - 4, mu + 9, wide) > 0)  # nowhere near, and yet
    True
    """
    log_ratio = log_v_2 - log_v_1
    s_12 = torch.logaddexp(log_v_1, log_v_2 + LOG_2)
    s_21 = torch.logaddexp(log_v_2, log_v_1 + LOG_2)
    m = torch.maximum(log_v_1, log_v_2)
    v_1, v_2 = (log_v_1 - m).exp(), (log_v_2 - m).exp()
    d = (mu_1 - mu_2) * (-m / 2).exp()
    distance = d.square() * (v_2 - v_1) / ((v_1 + 2 * v_2) * (2 * v_1 + v_2))
    return ((log_ratio + s_21 - s_12) / 2 + distance).sum(-1)


def inclusion_score(a: Embedding, b: Embedding) -> Float[Tensor, " B"]:
    """Return ``inc(a, b) / D`` of B pairs, row by row.

    Parameters
    ----------
    a, b : Embedding [B]
        Specific and general embeddings; row i of ``a`` and row i of ``b`` are one pair.

    Raises
    ------
    InputError
        For batches of different length, and embeddings without variances.
    """
    if len(a) != len(b):
        raise InputError(f"a has {len(a)} rows and b {len(b)}: pass pairs, row by row.")
    variances = a.variance, b.variance
    if not all(bool((v > 0).all()) for v in variances):
        raise InputError("embeddings have no variance: inclusion needs objective='prolip'.")
    inc = log_inclusion(a.mean, variances[0].log(), b.mean, variances[1].log())
    return inc / a.mean.shape[1]
