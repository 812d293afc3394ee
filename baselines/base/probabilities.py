"""Class probabilities as an uncertainty: entropy, disagreement of members, mean-field softmax."""

from __future__ import annotations

import math

from torch import Tensor

from baselines.base.pairs import log_mean_exp
from laplace_metric._utils.validation import check_name

DISAGREEMENTS = ("entropy", "jensen_shannon")


def entropy(logits: Tensor) -> Tensor:
    """Compute ``-sum_c p_c log p_c`` of ``p = softmax(logits)`` [..., C], in nats, in [0, log C].

    Examples
    --------
    >>> import torch
    >>> round(float(entropy(torch.zeros(4))), 4)  # log 4
    1.3863
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).clamp_max(0)  # above 0 only by rounding


def log_mean_softmax(logits: Tensor) -> Tensor:
    """Return the log of the members' mean probabilities [B, C] of logits [S, B, C]."""
    return log_mean_exp(logits.log_softmax(-1))


def jensen_shannon(logits: Tensor) -> Tensor:
    """Compute ``H(mean_s p_s) - mean_s H(p_s)`` of members [S, B, C], in [0, log min(S, C)] nats.

    Examples
    --------
    >>> import torch
    >>> agreeing, opposed = torch.zeros(2, 1, 2), torch.tensor([[[50.0, 0]], [[0, 50.0]]])
    >>> jensen_shannon(agreeing), jensen_shannon(opposed)
    (tensor([0.]), tensor([0.6931]))
    """
    return (entropy(log_mean_softmax(logits)) - entropy(logits).mean(0)).clamp_min(0)


def disagreement(logits: Tensor, score: str) -> Tensor:
    """Return the entropy of the members' mean probabilities, or their divergence, [B]."""
    check_disagreement(score)
    if score == "jensen_shannon":
        return jensen_shannon(logits)
    return entropy(log_mean_softmax(logits))


def check_disagreement(score: str) -> None:
    """Raise ``UnknownNameError`` unless there is such a score."""
    check_name("score", score, DISAGREEMENTS)


def mean_field(logits: Tensor, variance: Tensor, factor: float = math.pi / 8) -> Tensor:
    """Return logits of the softmax's mean under ``N(logits, variance)``, approximately.

        logits_c / sqrt(1 + factor variance)          (Lu et al. 2020; MacKay 1992 for two classes)

    Parameters
    ----------
    logits : Tensor [B, C]
        Mean of the logits.
    variance : Tensor [B]
        Variance that every logit of an input has.
    factor : float >= 0
        Factor of the variance. Default: pi / 8; with 0 the variance is left out.

    Examples
    --------
    >>> import torch
    >>> mean_field(torch.tensor([[2.0, 0.0]]), torch.tensor([3.0]), factor=1.0)
    tensor([[1., 0.]])
    """
    return logits / (1 + factor * variance).sqrt()[:, None]
