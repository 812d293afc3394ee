"""The small embedders of the demo: dropout between the layers, a linear layer at the end."""

from __future__ import annotations

import torch
from torch import nn

EMBEDDING_SIZE = 16
DROPOUT = 0.2  # the rate of the Monte Carlo dropout baseline of Warburg et al. (2023)
TINY = 16  # pixels; below, strided convolutions would leave nothing


def small_network(
    channels: int, side: int, *, embedding_size: int = EMBEDDING_SIZE, dropout: float = DROPOUT
) -> nn.Sequential:
    """Images [B, channels, side, side] -> embeddings [B, embedding_size], not normalised.

    Two hidden layers: dense ones for tiny images, strided convolutions for larger ones.

    Examples
    --------
    >>> small_network(1, 8)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 16])
    """
    body = _dense(channels, side, dropout) if side < TINY else _convolutions(channels, dropout)
    with torch.no_grad():
        width = body(torch.zeros(1, channels, side, side)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, embedding_size))


def _dense(channels: int, side: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * side * side, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
    )


def _convolutions(channels: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
    )
