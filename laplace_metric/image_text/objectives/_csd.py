"""CSD: the closed-form sampled distance of two Gaussians with diagonal covariances.

Of any two, and as a similarity of unit means::

    CSD(1, 2) = E |Z_1 - Z_2|^2 = |mu_1 - mu_2|^2 + tr(S_1 + S_2)
    s(1, 2)   = mu_1 . mu_2 - (tr S_1 + tr S_2) / 2 = 1 - CSD / 2          (unit means)

with S = diag(v), ``log_v`` [.., D] its logarithm (Chun 2024, eq 1; Chun et al. 2025, eq 1 and A.1).
The trace is ``sum_d (v_1 + v_2)``, of variances; eq 1 of the latter prints ``|sigma_1 + sigma_2|``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_name
from laplace_metric.embedding import Embedding

ENGINES = ("inner", "l2")


def csd(
    mu_1: Float[Tensor, "*#B D"],
    log_v_1: Float[Tensor, "*#B D"],
    mu_2: Float[Tensor, "*#B D"],
    log_v_2: Float[Tensor, "*#B D"],
) -> Float[Tensor, "*C"]:
    """Return ``E |Z_1 - Z_2|^2`` [...] of independent Gaussians; batches broadcast.

    Parameters
    ----------
    mu_1, log_v_1 : Tensor [..., D]
        Means and log variances of the first Gaussians.
    mu_2, log_v_2 : Tensor [..., D]
        Means and log variances of the second Gaussians.

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
    """Return ``s(b, c) = mu_b . mu_c - (tr S_b + tr S_c) / 2`` [B, C] for unit means; at most 1.

    Parameters
    ----------
    mu_1, log_v_1 : Tensor [B, D]
        Unit means and log variances of the first Gaussians.
    mu_2, log_v_2 : Tensor [C, D]
        Unit means and log variances of the second Gaussians.

    Examples
    --------
    >>> csd_similarity(torch.eye(2), torch.zeros(2, 2), torch.eye(2), torch.zeros(2, 2))
    tensor([[-1., -2.],
            [-2., -1.]])
    """
    trace_1, trace_2 = (log_v.exp().sum(-1) for log_v in (log_v_1, log_v_2))
    return mu_1 @ mu_2.mT - (trace_1[:, None] + trace_2) / 2


def similarities(a: Embedding, b: Embedding) -> Float[Tensor, "B C"]:
    """Return ``csd_similarity`` of all pairs of embeddings [B, C]; the cosine without variances."""
    return csd_similarity(a.mean, a.variance.log(), b.mean, b.variance.log())


def csd_query(mu: Float[Tensor, "B D"], engine: str = "inner") -> Float[Tensor, "B D_plus_1"]:
    """Return queries [B, D + 1] for a vector engine whose gallery is of ``csd_gallery``.

    Parameters
    ----------
    mu : Tensor [B, D]
        Unit means of the queries.
    engine : "inner" | "l2"
        Quantity that the engine ranks by: inner product, the default, or Euclidean distance.

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
    """Return items [C, D + 1] with one more coordinate, by which any engine ranks as CSD does.

    ``-tr S / 2`` for inner products, ``sqrt(tr S)`` for Euclidean distance.

    Parameters
    ----------
    mu, log_v : Tensor [C, D]
        Unit means and log variances of the items.
    engine : "inner" | "l2"
        Quantity that the engine ranks by: inner product, the default, or Euclidean distance.

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
