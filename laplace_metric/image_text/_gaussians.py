"""Gaussians with diagonal covariances: their distance, inclusion and membership, in closed form.

**Distance.** CSD, of any two, and as a similarity of unit means::

    CSD(1, 2) = E |Z_1 - Z_2|^2 = |mu_1 - mu_2|^2 + tr(S_1 + S_2)
    s(1, 2)   = mu_1 . mu_2 - (tr S_1 + tr S_2) / 2 = 1 - CSD / 2          (unit means)

with S = diag(v), ``log_v`` [.., D] its logarithm (Chun 2024, eq 1; Chun et al. 2025, eq 1 and A.1).
The trace is ``sum_d (v_1 + v_2)``, of variances; eq 1 of the latter prints ``|sigma_1 + sigma_2|``.

**Inclusion.** With ``v = sigma^2``, ``l = log v`` and ``d = mu_1 - mu_2``, a sum over dimensions of

    inc(1, 2) = log int p_1^2 p_2
              = -(log 4 pi + l_1) / 2 - (log pi + S) / 2 - d^2 exp(-S),  S = log(v_1 + 2 v_2)

    H(1, 2) = inc(1, 2) - inc(2, 1)
            = [l_2 - l_1 + log(2 v_1 + v_2) - log(v_1 + 2 v_2)] / 2
              + d^2 (v_2 - v_1) / ((v_1 + 2 v_2) (2 v_1 + v_2))

(Chun et al. 2025, eqs 3 and 4, whose ``-2 log v_1 - log v_2`` is half of what it prints.) S is
computed by ``logaddexp``, and H is divided through by ``exp(max(l_1, l_2))``: v itself underflows.

H is no test of inclusion: in each dimension it has the sign of ``v_2 - v_1`` whatever the means,
and it grows with their distance. Show it next to random pairs; ``inc`` responds to the means.

**Membership** (this project's). A density spreads thinner as it widens. A region does not::

    g_t(x)   = exp(-(x - mu_t)' S_t^-1 (x - mu_t) / 2)          membership, 1 at the mean
    m(t | x) = E g_t(x),  x ~ N(mu, S)
             = sqrt(det S_t / det(S + S_t)) exp(-d' (S + S_t)^-1 d / 2),  d = mu - mu_t

It grows with S_t. It is ``Vol(t and x) / Vol(x)`` for unnormalised Gaussians, as the conditional
probability of box lattices is for boxes (Vilnis et al. 2018), and Bayes' rule holds exactly, with
the volume as the prior: ``m(t | u) / m(u | t) = sqrt(det S_t / det S_u)``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_name
from laplace_metric.embedding import Embedding

ENGINES = ("inner", "l2")
LOG_2, LOG_PI, LOG_4_PI = math.log(2), math.log(math.pi), math.log(4 * math.pi)
BLOCK_BYTES = 2**24
"""Of the differences of pairs that are computed at once."""


def csd(
    mu_1: Float[Tensor, "*#B D"],
    log_v_1: Float[Tensor, "*#B D"],
    mu_2: Float[Tensor, "*#B D"],
    log_v_2: Float[Tensor, "*#B D"],
) -> Float[Tensor, "*C"]:
    """``E |Z_1 - Z_2|^2`` [...] of independent Gaussians; batches broadcast.

    Examples
    --------
    >>> mu, log_v = torch.eye(2), torch.zeros(2, 2)
    >>> csd(mu, log_v, mu.flip(0), log_v)
    tensor([6., 6.])
    """
    return (mu_1 - mu_2).square().sum(-1) + (log_v_1.exp() + log_v_2.exp()).sum(-1)


def csd_similarity(
    mu_1: Float[Tensor, "B D"],
    log_v_1: Float[Tensor, "B D"],
    mu_2: Float[Tensor, "C D"],
    log_v_2: Float[Tensor, "C D"],
) -> Float[Tensor, "B C"]:
    """``s(b, c) = mu_b . mu_c - (tr S_b + tr S_c) / 2`` [B, C] for unit means; at most 1.

    Examples
    --------
    >>> csd_similarity(torch.eye(2), torch.zeros(2, 2), torch.eye(2), torch.zeros(2, 2))
    tensor([[-1., -2.],
            [-2., -1.]])
    """
    trace_1, trace_2 = (log_v.exp().sum(-1) for log_v in (log_v_1, log_v_2))
    return mu_1 @ mu_2.mT - (trace_1[:, None] + trace_2) / 2


def similarities(a: Embedding, b: Embedding) -> Float[Tensor, "B C"]:
    """``csd_similarity`` of all pairs of embeddings [B, C]; the cosine without variances."""
    return csd_similarity(a.mean, a.variance.log(), b.mean, b.variance.log())


def csd_query(mu: Float[Tensor, "B D"], engine: str = "inner") -> Float[Tensor, "B D_plus_1"]:
    """Queries [B, D + 1] for a vector engine whose gallery is of ``csd_gallery``.

    Parameters
    ----------
    mu : Tensor [B, D]
        Unit means.
    engine : "inner" | "l2"
        What the engine ranks by.

    Raises
    ------
    UnknownNameError
        For another engine.

    Examples
    --------
    >>> csd_query(torch.eye(2))
    tensor([[1., 0., 1.],
            [0., 1., 1.]])
    """
    check_name("engine", engine, ENGINES)
    last = torch.ones_like if engine == "inner" else torch.zeros_like
    return torch.cat([mu, last(mu[:, :1])], 1)


def csd_gallery(
    mu: Float[Tensor, "C D"], log_v: Float[Tensor, "C D"], engine: str = "inner"
) -> Float[Tensor, "C D_plus_1"]:
    """Items [C, D + 1]: one more coordinate, by which any engine ranks as CSD does.

    ``-tr S / 2`` for inner products, ``sqrt(tr S)`` for Euclidean distance.

    Raises
    ------
    UnknownNameError
        For another engine.

    Examples
    --------
    >>> csd_gallery(torch.eye(2), torch.zeros(2, 2))
    tensor([[ 1.,  0., -1.],
            [ 0.,  1., -1.]])
    """
    check_name("engine", engine, ENGINES)
    trace = log_v.exp().sum(-1, keepdim=True)
    return torch.cat([mu, -trace / 2 if engine == "inner" else trace.sqrt()], 1)


def log_inclusion(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
) -> Float[Tensor, "*B"]:
    """``inc(1, 2) = log int p_1^2 p_2`` [...]: large where 1 lies inside 2. In nats.

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
    """``H(1, 2) = inc(1, 2) - inc(2, 1)`` [...] in nats: above 0 says that 2 is the wider one.

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


def log_membership(
    mu: Float[Tensor, "B D"],
    log_v: Float[Tensor, "B D"],
    mu_t: Float[Tensor, "C D"],
    log_v_t: Float[Tensor, "C D"],
) -> Float[Tensor, "B C"]:
    """``log m(t | x)`` of B inputs in C regions [B, C], at most 0.

    O(B C D) time; memory O(B C), forward and backward.

    Examples
    --------
    >>> mu, narrow = torch.zeros(1, 2), torch.zeros(1, 2)
    >>> log_membership(mu + 1, narrow, torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    tensor([[-1.1931, -0.0960]])
    """
    result: Tensor = _LogMembership.apply(mu, log_v.exp(), mu_t, log_v_t.exp())
    return result


class _LogMembership(torch.autograd.Function):
    """In blocks of inputs, with V = v + v_t and r = d / V.

    ::

        log m        = sum (log v_t - log V - d r) / 2
        d / d mu     = -r,  d / d mu_t = r,  d / d V = (r^2 - 1 / V) / 2
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, v: Tensor, mu_t: Tensor, v_t: Tensor) -> Tensor:
        ctx.save_for_backward(mu, v, mu_t, v_t)
        blocks = []
        for rows in _blocks(mu, mu_t):
            V, d = v[rows, None] + v_t, mu[rows, None] - mu_t  # [b, C, D]
            blocks.append((V.log() + d.square() / V).sum(-1))
        return (v_t.log().sum(-1) - torch.cat(blocks)) / 2

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        mu, v, mu_t, v_t = ctx.saved_tensors
        (g,) = upstream
        of_mu, of_v, of_mu_t, of_v_t = (torch.zeros_like(x) for x in (mu, v, mu_t, v_t))
        for rows in _blocks(mu, mu_t):
            w = 1 / (v[rows, None] + v_t)
            r = (mu[rows, None] - mu_t) * w
            weighted, slope = g[rows, :, None] * r, g[rows, :, None] * (r.square() - w) / 2
            of_mu[rows], of_v[rows] = -weighted.sum(1), slope.sum(1)
            of_mu_t += weighted.sum(0)
            of_v_t += slope.sum(0)
        return of_mu, of_v, of_mu_t, of_v_t + g.sum(0)[:, None] / (2 * v_t)


def _blocks(mu: Tensor, mu_t: Tensor) -> list[slice]:
    step = max(1, BLOCK_BYTES // (mu_t.numel() * mu_t.element_size()))
    return [slice(start, start + step) for start in range(0, len(mu), step)]
