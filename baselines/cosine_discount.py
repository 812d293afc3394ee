"""Cosines that are discounted by their variance, as probabilistic image-text searches do.

    cos(q, g) / sqrt(1 + pi/8 beta var)
    var = sum_k u_qk^2 s_gk^2 + u_gk^2 s_qk^2 + s_qk^2 s_gk^2

u are the directions of the means and s^2 the variances of both embeddings, divided by the squared
length of the mean. ``var`` is the variance of ``u_q.u_g`` if all coordinates are independent, as in
BayesVLM's ProbCosine (Baumann et al. 2024). The root is MacKay's approximation of a probit under a
Gaussian.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_real
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError


def cosine_discount(
    query: Embedding, gallery: Embedding, *, beta: float = 1.0
) -> Float[Tensor, "Q G"]:
    """Return the discounted cosine [Q, G] of every pair; the largest is the nearest.

    Variances that embeddings share, such as those of the weights of one head, count as if they were
    independent.

    Parameters
    ----------
    query, gallery : Embedding [Q], [G]
        Embeddings with a variance [B, Z] and of one size; those of a ``LaplaceEmbedder`` are.
    beta : float >= 0
        Weight of the variance; 0 gives the cosine. Default: 1.

    Raises
    ------
    InputError
        For a negative beta, embeddings of other sizes, and means without a direction.

    Examples
    --------
    >>> from laplace_metric.distributions import Gaussian
    >>> unsure = Embedding(Gaussian(torch.eye(2), torch.tensor([[0.1, 0.1], [8.0, 8.0]])))
    >>> point = Embedding(Gaussian(torch.ones(1, 2), torch.zeros(1, 2)))
    >>> cosine_discount(point, unsure)
    tensor([[0.6936, 0.3475]])
    """
    if check_real("beta", beta) < 0:
        raise InputError(f"beta={beta!r}: pass a number of 0 or more.")
    u_q, s_q = _direction("query", query)
    u_g, s_g = _direction("gallery", gallery)
    if u_q.shape[1] != u_g.shape[1]:
        raise InputError(
            f"query has size {u_q.shape[1]} and gallery {u_g.shape[1]}: pass embeddings of one "
            "size."
        )
    variance = u_q.square() @ s_g.mT + s_q @ u_g.square().mT + s_q @ s_g.mT
    return (u_q @ u_g.mT) / (1 + math.pi / 8 * beta * variance).sqrt()


def _direction(name: str, embedding: Embedding) -> tuple[Tensor, Tensor]:
    """Return directions [B, Z] and variances [B, Z] over squared lengths."""
    length = embedding.mean.norm(dim=1, keepdim=True)
    if bool((length == 0).any()):
        row = int((length[:, 0] == 0).nonzero()[0, 0])
        raise InputError(f"{name}: the mean of row {row} is zero and has no direction.")
    variance: Tensor = torch.as_tensor(embedding.variance)
    return embedding.mean / length, variance / length.square()
