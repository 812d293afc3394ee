"""The uncertainty head of PFE, which HIB shares in LAM."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SharedBatchNorm(nn.Module):
    """Batch norm whose learnt scale and shift are one number each, shared by all dimensions."""

    def __init__(self, size: int, scale: float, shift: float) -> None:
        super().__init__()
        self.normalize = nn.BatchNorm1d(size, affine=False)
        self.scale = nn.Parameter(torch.tensor(scale))
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        """[B, Z] -> [B, Z]."""
        return self.scale * self.normalize(x) + self.shift


class LogVarianceHead(nn.Sequential):
    """Features [B, D] -> log variances [B, Z]: linear, batch norm, ReLU, linear, batch norm.

    Parameters
    ----------
    n_features, hidden, size : int
        D, the width, Z.
    start : float
        Mean of the log variances before training; they spread by 1 around it.

    Examples
    --------
    >>> LogVarianceHead(4, 8, 2, start=-7.0)(torch.randn(50, 4)).mean().round()
    tensor(-7., grad_fn=<RoundBackward0>)
    """

    def __init__(self, n_features: int, hidden: int, size: int, start: float) -> None:
        super().__init__(
            nn.Linear(n_features, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, size),
            SharedBatchNorm(size, 1.0, start),
        )
