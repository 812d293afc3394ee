"""Membership of a Gaussian in a region, in closed form (this project's).

A density spreads thinner as it widens. A region does not::

    g_t(x)   = exp(-(x - mu_t)' S_t^-1 (x - mu_t) / 2)          membership, 1 at the mean
    m(t | x) = E g_t(x),  x ~ N(mu, S)
             = sqrt(det S_t / det(S + S_t)) exp(-d' (S + S_t)^-1 d / 2),  d = mu - mu_t

It grows with S_t. It is ``Vol(t and x) / Vol(x)`` for unnormalised Gaussians, as the conditional
probability of box lattices is for boxes (Vilnis et al. 2018), and Bayes' rule holds exactly, with
the volume as the prior: ``m(t | u) / m(u | t) = sqrt(det S_t / det S_u)``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.blocks import blocks


def log_membership(
    mu: Float[Tensor, "B D"],
    log_v: Float[Tensor, "B D"],
    mu_t: Float[Tensor, "C D"],
    log_v_t: Float[Tensor, "C D"],
) -> Float[Tensor, "B C"]:
    """Return ``log m(t | x)`` of B inputs in C regions [B, C], at most 0.

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
    """Log membership in blocks of inputs, with V = v + v_t and r = d / V.

    ::

        log m        = sum (log v_t - log V - d r) / 2
        d / d mu     = -r,  d / d mu_t = r,  d / d V = (r^2 - 1 / V) / 2
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, v: Tensor, mu_t: Tensor, v_t: Tensor) -> Tensor:
        ctx.save_for_backward(mu, v, mu_t, v_t)
        sums = []
        for rows in blocks(len(mu), mu_t.nbytes):
            V, d = v[rows, None] + v_t, mu[rows, None] - mu_t  # [b, C, D]
            sums.append((V.log() + d.square() / V).sum(-1))
        return (v_t.log().sum(-1) - torch.cat(sums)) / 2

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        mu, v, mu_t, v_t = ctx.saved_tensors
        (g,) = upstream
        of_mu, of_v, of_mu_t, of_v_t = (torch.zeros_like(x) for x in (mu, v, mu_t, v_t))
        for rows in blocks(len(mu), mu_t.nbytes):
            w = 1 / (v[rows, None] + v_t)
            r = (mu[rows, None] - mu_t) * w
            weighted, slope = g[rows, :, None] * r, g[rows, :, None] * (r.square() - w) / 2
            of_mu[rows], of_v[rows] = -weighted.sum(1), slope.sum(1)
            of_mu_t += weighted.sum(0)
            of_v_t += slope.sum(0)
        return of_mu, of_v, of_mu_t, of_v_t + g.sum(0)[:, None] / (2 * v_t)
