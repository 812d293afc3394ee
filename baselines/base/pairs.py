"""Pairs of a batch that share a class or do not, and losses over all of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from laplace_metric.errors import InputError, LabelError


def same_class(labels: Tensor) -> Tensor:
    """Return [B, B], true where i and j are two different items of one class.

    Examples
    --------
    >>> same_class(torch.tensor([0, 0, 1])).int()
    tensor([[0, 1, 0],
            [1, 0, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    return (labels[:, None] == labels).fill_diagonal_(False)


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices (i, j) of every ordered pair i != j of one class.

    Raises
    ------
    LabelError
        If there is none.
    """
    i, j = same_class(labels).nonzero(as_tuple=True)
    if not len(i):
        raise LabelError(
            f"no two items of the batch of {len(labels)} share a class, so there is no positive "
            "pair: use larger batches, drop a small last one (drop_last=True), or take a sampler "
            "such as pytorch-metric-learning's MPerClassSampler."
        )
    return i, j


def unordered_pairs(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return every pair i < j of the batch, and whether it shares its class."""
    i, j = torch.triu_indices(len(labels), len(labels), 1, device=labels.device)
    return i, j, labels[i] == labels[j]


def check_rows(embeddings: Tensor, labels: Tensor, **others: Tensor) -> None:
    """Raise ``InputError`` unless everything has one row for each of the embeddings [B, Z]."""
    if embeddings.ndim != 2:
        raise InputError(f"embeddings has shape {tuple(embeddings.shape)}: pass [B, Z].")
    for name, value in {"labels": labels, **others}.items():
        if len(value) != len(embeddings):
            raise InputError(f"{name} has {len(value)} rows, embeddings {len(embeddings)}.")


def log_mean_exp(values: Tensor, dim: int = 0) -> Tensor:
    """Return ``log mean exp`` over one dimension; nothing overflows.

    Examples
    --------
    >>> log_mean_exp(torch.tensor([0.0, math.log(3.0)]), 0).exp()
    tensor(2.)
    """
    return values.logsumexp(dim) - math.log(values.shape[dim])


def pair_log_probabilities(similarity: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of every positive (i, j) among the negatives of its anchor i.

        p_ij = e^{s_ij} / (e^{s_ij} + sum_{k of another class} e^{s_ik})

    Parameters
    ----------
    similarity : Tensor [..., B, B]
        Similarities s of all pairs of the batch; the diagonal is not used.
    labels : Tensor [B]
        Class of each row of the batch.

    Returns
    -------
    Tensor [..., n_pairs], in the order of ``positive_pairs``.

    Raises
    ------
    LabelError
        If the batch has no positive pair, or one class only.

    Examples
    --------
    >>> s, y = torch.zeros(3, 3), torch.tensor([0, 0, 1])
    >>> pair_log_probabilities(s, y).exp()  # one positive against one negative
    tensor([0.5000, 0.5000])
    """
    i, j = positive_pairs(labels)
    if len(labels.unique()) < 2:
        raise LabelError("the batch holds one class, so there is no negative: use larger batches.")
    same = labels[:, None] == labels
    negatives = similarity.masked_fill(same, -math.inf).logsumexp(-1)
    positive = similarity[..., i, j]
    return positive - torch.logaddexp(positive, negatives[..., i])


def matching_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the soft contrastive loss over every pair of a batch (Oh et al. 2019, eq. 3).

        p_ij = mean_s sigmoid(l_sij)
        loss = mean_same -log p_ij + mean_different -log(1 - p_ij)

    Both means are taken apart, so that the rarer kind counts as much (Kirchhof et al. 2023b, eq. 5;
    they take ``+ log p`` for the second term, on purpose, where this has the ``-log(1 - p)`` of the
    likelihood). ``1 - p = mean_s sigmoid(-l)``: no cancellation.

    Parameters
    ----------
    logits : Tensor [S, B, B]
        Logits l of all pairs, of S draws.
    labels : Tensor [B]
        Class of each row of the batch.

    Raises
    ------
    LabelError
        If the batch lacks pairs of one class or pairs of two.

    Examples
    --------
    >>> logits = torch.zeros(1, 3, 3)
    >>> round(float(matching_loss(logits, torch.tensor([0, 0, 1]))), 4)  # 2 log 2
    1.3863
    """
    i, j, same = unordered_pairs(labels)
    if bool(same.all()) or not bool(same.any()):
        raise LabelError(
            "the batch needs pairs of one class and pairs of two: use larger batches, and drop a "
            "small last one (drop_last=True)."
        )
    pairs = logits[:, i, j]
    match = log_mean_exp(nn.functional.logsigmoid(pairs[:, same]), 0)
    differ = log_mean_exp(nn.functional.logsigmoid(-pairs[:, ~same]), 0)
    return -match.mean() - differ.mean()
