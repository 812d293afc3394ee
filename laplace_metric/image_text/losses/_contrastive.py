"""Losses over all pairs of a batch of images and texts, with any number of matches on either side.

``s`` [B, C] are similarities of B images and C texts, ``match`` [B, C] says which belong together
(y = 1 there, -1 elsewhere).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from laplace_metric.errors import LabelError


def pairwise_sigmoid_loss(
    s: Float[Tensor, "B C"],
    match: Bool[Tensor, "B C"],
    a: Float[Tensor, ""] | float = 10.0,
    b: Float[Tensor, ""] | float = -10.0,
) -> Float[Tensor, ""]:
    """``1/B sum_bc -log sigmoid(y (a s + b))``.

    PPCL with s of ``csd_similarity`` (Chun et al. 2025, eq 2, whose b has the wrong sign: with
    ``-a s + b`` negatives cost 10.9 at the start, not 1e-4); SigLIP with the cosine (Zhai et al.
    2023).

    Raises
    ------
    LabelError
        If nothing matches.

    Examples
    --------
    >>> pairwise_sigmoid_loss(torch.eye(2), torch.eye(2) > 0)
    tensor(0.6932)
    """
    _check(match)
    y = torch.where(match, 1.0, -1.0).to(s)
    return -logsigmoid(y * (a * s + b)).sum() / len(s)


def multi_positive_infonce(
    s: Float[Tensor, "B C"], match: Bool[Tensor, "B C"], a: Float[Tensor, ""] | float = 10.0
) -> Float[Tensor, ""]:
    """CLIP's loss, with the mean over matches of the log probability that softmax gives.

    ``mean_b -1/|P(b)| sum_{c in P(b)} log softmax_c(a s_bc)``, likewise over texts, half of each
    (Radford et al. 2021; Khosla et al. 2020, eq 2). Rows without a match do not count.

    Raises
    ------
    LabelError
        If nothing matches.

    Examples
    --------
    >>> multi_positive_infonce(torch.zeros(2, 2), torch.eye(2) > 0)
    tensor(0.6931)
    """
    _check(match)
    return (_one_way(a * s, match) + _one_way(a * s.mT, match.mT)) / 2


def _one_way(logits: Tensor, match: Tensor) -> Tensor:
    n_matches = match.sum(1)
    log_p = logits.log_softmax(1).masked_fill(~match, 0).sum(1)
    return -(log_p / n_matches.clamp_min(1))[n_matches > 0].mean()


def soft_contrastive_loss(
    distance: Float[Tensor, "B C"],
    match: Bool[Tensor, "B C"],
    a: Float[Tensor, ""] | float = 5.0,
    b: Float[Tensor, ""] | float = 5.0,
    *,
    pseudo_weight: float = 0.1,
) -> Float[Tensor, ""]:
    """PCME++: binary cross-entropy of ``sigmoid(b - a CSD)``, and of pseudo-positives beside it.

    A pair that does not match but is at least as near as a match of its image or its text counts
    as a match in the second term (Chun 2024, eqs 2 and 3).

    Parameters
    ----------
    pseudo_weight : float
        Of the second term.

    Raises
    ------
    LabelError
        If nothing matches.

    Examples
    --------
    >>> soft_contrastive_loss(2 - 2 * torch.eye(2), torch.eye(2) > 0, pseudo_weight=0.0)
    tensor(0.0067)
    """
    _check(match)
    logits = b - a * distance
    loss = binary_cross_entropy_with_logits(logits, match.to(logits))
    farthest = distance.detach().masked_fill(~match, -torch.inf)
    rows, columns = farthest.amax(1, keepdim=True), farthest.amax(0, keepdim=True)
    pseudo = match | (distance <= rows) | (distance <= columns)
    return loss + pseudo_weight * binary_cross_entropy_with_logits(logits, pseudo.to(logits))


def vib_divergence(mu: Float[Tensor, "B D"], log_v: Float[Tensor, "B D"]) -> Float[Tensor, ""]:
    """``mean_b KL(N(mu, v) | N(0, I)) = mean_b sum_d -(1 + log v - mu^2 - v) / 2`` in nats.

    (Chun et al. 2025, eq A.2.) Keeps variances from vanishing.

    Examples
    --------
    >>> vib_divergence(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor(0.)
    """
    return (mu.square() + log_v.exp() - 1 - log_v).sum(-1).mean() / 2


def _check(match: Tensor) -> None:
    if not bool(match.any()):
        raise LabelError("match holds no pair that belongs together: pass at least one.")
