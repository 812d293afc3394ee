"""Losses over all pairs of a batch of images and texts.

``s`` [B, C] are similarities of B images and C texts, ``match`` [B, C] is True where they belong
together (y = 1 there, -1 elsewhere); any number of matches on either side.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from laplace_metric.errors import LabelError
from laplace_metric.image_text.objectives._inclusion import inclusion_difference


def inclusion_loss(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
    *,
    c: float = 10.0,
    epsilon: float = -10.0,
) -> Float[Tensor, ""]:
    """Compute ``mean -log sigmoid(c H(1, 2))``, every ``1/v`` multiplied by ``exp(epsilon)``.

    Chun et al. 2025, eq 5 and appendix B.1, whose recommended c and epsilon are the defaults. For
    an image inside its text, or an input inside what is left of it after masking.

    Parameters
    ----------
    mu_1, log_v_1 : Tensor [..., D]
        Means and log variances of the specific inputs: images, or full inputs.
    mu_2, log_v_2 : Tensor [..., D]
        Means and log variances of the general inputs: their texts, or the same inputs masked.
    c : float > 0
        Factor of the logit. Default: 10, as in the paper.
    epsilon : float
        Logarithm of the factor of every ``1/v``. Default: -10, as in the paper.

    Examples
    --------
    >>> mu, log_v = torch.zeros(3, 2), torch.zeros(3, 2)
    >>> inclusion_loss(mu, log_v, mu, log_v)
    tensor(0.6931)
    """
    h = inclusion_difference(mu_1, log_v_1 - epsilon, mu_2, log_v_2 - epsilon)
    return -logsigmoid(c * h).mean()


def pairwise_sigmoid_loss(
    s: Float[Tensor, "B C"],
    match: Bool[Tensor, "B C"],
    a: Float[Tensor, ""] | float = 10.0,
    b: Float[Tensor, ""] | float = -10.0,
) -> Float[Tensor, ""]:
    """Compute ``1/B sum_bc -log sigmoid(y (a s + b))``.

    PPCL with s of ``csd_similarity`` (Chun et al. 2025, eq 2, whose b has the wrong sign: with
    ``-a s + b`` negatives cost 10.9 at the start, not 1e-4); SigLIP with the cosine (Zhai et al.
    2023).

    Parameters
    ----------
    s : Tensor [B, C]
        Similarities of images and texts.
    match : Tensor [B, C] of bool
        True for the pairs that belong together.
    a, b : float or scalar Tensor
        Scale and offset of the logit. Default: 10 and -10.

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
    """Compute CLIP's loss, with the mean over matches of the log probability of the softmax.

    ``mean_b -1/|P(b)| sum_{c in P(b)} log softmax_c(a s_bc)``, likewise over texts, half of each
    (Radford et al. 2021; Khosla et al. 2020, eq 2). Rows without a match do not count.

    Parameters
    ----------
    s : Tensor [B, C]
        Similarities of images and texts.
    match : Tensor [B, C] of bool
        True for the pairs that belong together.
    a : float or scalar Tensor
        Scale of the logits, one over the temperature. Default: 10.

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
    """Compute the cross-entropy of ``sigmoid(b - a CSD)``, and of pseudo-positives (PCME++).

    A pair that does not match but is at least as near as a match of its image or its text counts
    as a match in the second term (Chun 2024, eqs 2 and 3).

    Parameters
    ----------
    distance : Tensor [B, C]
        Distances CSD of images and texts.
    match : Tensor [B, C] of bool
        True for the pairs that belong together.
    a, b : float or scalar Tensor
        Scale and offset of the logit ``b - a CSD``. Default: 5 and 5.
    pseudo_weight : float
        Weight of the second term, that of pseudo-positives. Default: 0.1.

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
    """Compute ``mean_b KL(N(mu, v) | N(0, I))`` in nats, ``sum_d -(1 + log v - mu^2 - v) / 2``.

    (Chun et al. 2025, eq A.2.) Keeps variances from vanishing.

    Parameters
    ----------
    mu, log_v : Tensor [B, D]
        Means and log variances of B Gaussians.

    Examples
    --------
    >>> vib_divergence(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor(0.)
    """
    return (mu.square() + log_v.exp() - 1 - log_v).sum(-1).mean() / 2


def _check(match: Tensor) -> None:
    if not bool(match.any()):
        raise LabelError("match holds no pair that belongs together: pass at least one.")


def conditional_loss(logit: Float[Tensor, "C C"], match: Bool[Tensor, "B C"]) -> Float[Tensor, ""]:
    """Compute the cross entropy of ``P(t | u)``, the share of the images of u that t names too.

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
    """Compute the loss of the images that a text names, as Poisson counts, by its trace.

    ``n_t ~ Poisson(exp(c) (tr S_t)^k)``: minus the log likelihood without its constant,
    ``exp(z) - n z`` with ``z = c + k log tr S``, averaged with weights 1/n, because texts that name
    n images are in n times as many batches.

    Parameters
    ----------
    trace : Tensor [C]
        Trace of the variance of each text, above 0.
    n_images : Tensor [C]
        Number of images of the whole data set that each text names, at least 1.
    exponent, log_rate : Tensor []
        Exponent k and log rate c of the power law.

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
