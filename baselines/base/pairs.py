"""Pairs of a batch that share a class, or do not."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError


def same_class(labels: Tensor) -> Tensor:
    """[B, B]: whether i and j are two different items of one class.

    Examples
    --------
    >>> same_class(torch.tensor([0, 0, 1])).int()
    tensor([[0, 1, 0],
            [1, 0, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    return (labels[:, None] == labels).fill_diagonal_(False)


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (i, j) of every ordered pair i != j of one class.

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
    """Every pair i < j of the batch, and whether it shares its class."""
    i, j = torch.triu_indices(len(labels), len(labels), 1, device=labels.device)
    return i, j, labels[i] == labels[j]


def check_rows(embeddings: Tensor, labels: Tensor, **others: Tensor) -> None:
    """Raise ``InputError`` unless everything has one row for each of the embeddings [B, Z]."""
    if embeddings.ndim != 2:
        raise InputError(f"embeddings has shape {tuple(embeddings.shape)}: pass [B, Z].")
    for name, value in {"labels": labels, **others}.items():
        if len(value) != len(embeddings):
            raise InputError(f"{name} has {len(value)} rows, embeddings {len(embeddings)}.")
