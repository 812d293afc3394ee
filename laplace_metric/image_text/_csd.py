"""CSD, inclusion and contrastive losses of diagonal Gaussians on the sphere.

    CSD(1, 2) = E |Z_1 - Z_2|^2 = |mu_1 - mu_2|^2 + tr(S_1 + S_2)
    s(1, 2)   = mu_1 . mu_2 - (tr S_1 + tr S_2) / 2 = 1 - CSD / 2          (unit means)

with S = diag(v), ``log_v`` [.., D] its logarithm (Chun 2024, eq 1; Chun et al. 2025, eq 1 and A.1).
The trace is ``sum_d (v_1 + v_2)``, of variances; eq 1 of the latter prints ``|sigma_1 + sigma_2|``.

Is one Gaussian inside another? The log inclusion, the difference H, and the losses of both.

With ``v = sigma^2``, ``l = log v`` and ``d = mu_1 - mu_2``, a sum over dimensions of

    inc(1, 2) = log int p_1^2 p_2
              = -(log 4 pi + l_1) / 2 - (log pi + S) / 2 - d^2 exp(-S),  S = log(v_1 + 2 v_2)

    H(1, 2) = inc(1, 2) - inc(2, 1)
            = [l_2 - l_1 + log(2 v_1 + v_2) - log(v_1 + 2 v_2)] / 2
              + d^2 (v_2 - v_1) / ((v_1 + 2 v_2) (2 v_1 + v_2))

(Chun et al. 2025, eqs 3 and 4, whose ``-2 log v_1 - log v_2`` is half of what it prints.) S is
taken by ``logaddexp``, and H is divided through by ``exp(max(l_1, l_2))``: v itself underflows.

H is no test of inclusion: in each dimension it has the sign of ``v_2 - v_1`` whatever the means,
and it grows with their distance. Show it beside random pairs; ``inc`` responds to the means.

Losses over all pairs of a batch of images and texts, with any number of matches on either side.

``s`` [B, C] are similarities of B images and C texts, ``match`` [B, C] says which belong together
(y = 1 there, -1 elsewhere).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from laplace_metric._utils.validation import check_name
from laplace_metric.errors import LabelError

ENGINES = ("inner", "l2")


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


LOG_2, LOG_PI, LOG_4_PI = math.log(2), math.log(math.pi), math.log(4 * math.pi)


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


def inclusion_loss(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
    *,
    c: float = 10.0,
    epsilon: float = -10.0,
) -> Float[Tensor, ""]:
    """``mean -log sigmoid(c H(1, 2))`` with every ``1/v`` multiplied by ``exp(epsilon)``.

    Chun et al. 2025, eq 5 and appendix B.1, whose recommended c and epsilon are the defaults. For
    an image inside its text, or an input inside what is left of it after masking.

    Parameters
    ----------
    mu_1, log_v_1 : Tensor [..., D]
        The specific one: an image, or a full input.
    mu_2, log_v_2 : Tensor [..., D]
        The general one: its text, or the same input masked.

    Examples
    --------
    >>> mu, log_v = torch.zeros(3, 2), torch.zeros(3, 2)
    >>> inclusion_loss(mu, log_v, mu, log_v)
    tensor(0.6931)
    """
    h = inclusion_difference(mu_1, log_v_1 - epsilon, mu_2, log_v_2 - epsilon)
    return -logsigmoid(c * h).mean()


def entailed(match: Bool[Tensor, "B C"]) -> Int[Tensor, "P two"]:
    """Rows (specific, general) of texts, where every image of the first is one of the second too.

    And the second has more images. What the inclusion loss takes for texts whose meaning is known
    by the images that they name: "poodle", "dog".

    Examples
    --------
    >>> dog, poodle, cat = [True, True, False], [False, True, False], [False, False, True]
    >>> entailed(torch.tensor([dog, poodle, cat]).T)
    tensor([[1, 0]])
    """
    x = match.to(torch.float32)
    shared = x.mT @ x  # images that both texts name [C, C]
    n = shared.diagonal()
    return ((shared == n[:, None]) & (n > n[:, None]) & (n[:, None] > 0)).nonzero()


def inclusion_contrast(
    mu_1: Float[Tensor, "B D"],
    log_v_1: Float[Tensor, "B D"],
    mu_2: Float[Tensor, "B D"],
    log_v_2: Float[Tensor, "B D"],
    other: Float[Tensor, "B D"],
    log_v_other: Float[Tensor, "B D"],
) -> Float[Tensor, ""]:
    """``mean -log sigmoid((inc(1, 2) - inc(1, other)) / D)``: inside its own, not a random one.

    Ours, not of the paper: H compares widths only, so that a loss of H widens every text alike.
    ``inc`` is a density: a text that is wide where no image of its own lies pays for it.

    Parameters
    ----------
    other, log_v_other : Tensor [B, D]
        A general one that 1 does not belong to.

    Examples
    --------
    >>> mu, log_v = torch.eye(2), torch.zeros(2, 2)
    >>> bool(inclusion_contrast(mu, log_v, mu, log_v, -mu, log_v) < 0.6931)
    True
    """
    own = log_inclusion(mu_1, log_v_1, mu_2, log_v_2)
    random = log_inclusion(mu_1, log_v_1, other, log_v_other)
    return -logsigmoid((own - random) / mu_1.shape[-1]).mean()


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
