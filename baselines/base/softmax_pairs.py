"""The log-probability that each positive of a batch gets among the negatives of its anchor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baselines.base.pairs import positive_pairs
from laplace_metric.errors import LabelError


def log_mean_exp(values: Tensor, dim: int = 0) -> Tensor:
    """``log mean exp`` over one dimension; nothing overflows.

    Examples
    --------
    >>> log_mean_exp(torch.tensor([0.0, math.log(3.0)]), 0).exp()
    tensor(2.)
    """
    return values.logsumexp(dim) - math.log(values.shape[dim])


def pair_log_probabilities(similarity: Tensor, labels: Tensor) -> Tensor:
    """For every ordered pair (i, j) of one class, the logarithm of

        p_ij = e^{s_ij} / (e^{s_ij} + sum_{k of another class} e^{s_ik})

    Parameters
    ----------
    similarity : Tensor [..., B, B]
        s; the diagonal is not used.
    labels : Tensor [B]

    Returns
    -------
    Tensor [..., n_pairs], in the order of ``positive_pairs``.

    Examples
    --------
    >>> s, y = torch.zeros(3, 3), torch.tensor([0, 0, 1])
    >>> pair_log_probabilities(s, y).exp()  # one positive against one negative
    tensor([0.5000, 0.5000])
    """
    i, j = positive_pairs(labels)
    if len(labels.unique()) < 2:
        raise LabelError("the batch holds one class, so there is no negative: use larger batches.")
    own = labels[:, None] == labels
    negatives = similarity.masked_fill(own, -math.inf).logsumexp(-1)
    positive = similarity[..., i, j]
    return positive - torch.logaddexp(positive, negatives[..., i])
