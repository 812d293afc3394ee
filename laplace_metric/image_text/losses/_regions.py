"""Texts as regions of the sphere: how large they are, and what lies inside.

Ours. A density (``log_inclusion``) spreads thinner as it widens, and CSD takes it farther from
everything, so that neither loss lets a text that names much be wide. A region does not:

    g_t(x)   = exp(-(x - mu_t)' S_t^-1 (x - mu_t) / 2)          membership, 1 at the mean
    m(t | x) = E g_t(x),  x ~ N(mu, S)
             = sqrt(det S_t / det(S + S_t)) exp(-d' (S + S_t)^-1 d / 2),  d = mu - mu_t

grows with S_t. It is ``Vol(t and x) / Vol(x)`` for unnormalised Gaussians, as the conditional
probability of box lattices is for boxes (Vilnis et al. 2018), and Bayes' rule holds exactly, with
the volume as the prior: ``m(t | u) / m(u | t) = sqrt(det S_t / det S_u)``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

BLOCK_BYTES = 2**24
"""Of the differences of pairs that are computed at once."""


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


def conditional_loss(logit: Float[Tensor, "C C"], match: Bool[Tensor, "B C"]) -> Float[Tensor, ""]:
    """Cross entropy of ``P(t | u)``, the share of the images of u that t names too.

    ``1/C sum_{u != t} -P log sigmoid(l_ut) - (1 - P) log sigmoid(-l_ut)``,
    ``P = |images of t and u| / |images of u|`` in the batch: "hand" of the images of "waving hand".

    Examples
    --------
    >>> hand, waving = [True, True], [True, False]
    >>> conditional_loss(torch.zeros(2, 2), torch.tensor([hand, waving]).T)
    tensor(0.6931)
    """
    y = match.to(logit)
    n = y.sum(0)
    target = (y.mT @ y) / n.clamp_min(1)[:, None]  # [u, t]
    loss = binary_cross_entropy_with_logits(logit, target, reduction="none")
    kept = (n > 0)[:, None] & ~torch.eye(len(n), dtype=torch.bool, device=n.device)
    return loss.where(kept, 0.0).sum() / len(n)


def size_loss(
    trace: Float[Tensor, " C"],
    n_images: Int[Tensor, " C"],
    exponent: Float[Tensor, ""],
    log_rate: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """The images that a text names as Poisson counts, of a power of its trace.

    ``n_t ~ Poisson(exp(c) (tr S_t)^k)``: minus the log likelihood without its constant,
    ``exp(z) - n z`` with ``z = c + k log tr S``, averaged with weights 1/n, because texts that name
    n images are in n times as many batches.

    Parameters
    ----------
    trace : Tensor [C]
        Above 0.
    n_images : Tensor [C]
        Of the whole data set, at least 1.
    exponent, log_rate : Tensor []
        k and c.

    Examples
    --------
    >>> n = torch.tensor([1, 4])
    >>> right = size_loss(torch.tensor([0.1, 0.4]), n, torch.tensor(1.0), torch.tensor(10.0).log())
    >>> bool(right < size_loss(torch.tensor([0.4, 0.1]), n, torch.tensor(1.0), torch.tensor(2.3)))
    True
    """
    z = log_rate + exponent * trace.log()
    n = n_images.to(z)
    return ((z.exp() - n * z) / n).sum() / (1 / n).sum()
