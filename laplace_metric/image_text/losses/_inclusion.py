"""Is one Gaussian inside another? The log inclusion, the difference H, and the losses of both.

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
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

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
