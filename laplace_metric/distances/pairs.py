"""Pairs of uncertain embeddings, and the moments of their squared distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.distributions import Covariance


@dataclass(frozen=True)
class Distance:
    """Mean and variance of the squared Euclidean distance of B pairs.

    Parameters
    ----------
    mean, variance : Tensor [B]
        On the sphere the squared distance is ``2 - 2 cos``: its mean is kept in [0, 4], its
        variance below ``mean (4 - mean)``, the most that a variable in [0, 4] can have.
    """

    mean: Tensor
    variance: Tensor

    @property
    def standard_deviation(self) -> Tensor:
        """[B]."""
        return self.variance.sqrt()


@dataclass(frozen=True)
class Pairs:
    """B pairs of Gaussian raw embeddings.

    Parameters
    ----------
    x, y : Tensor [B, Z]
    xx, yy : Covariance
    xy : Covariance or None
        ``Cov[z_x, z_y]``; None for independent ones.
    """

    x: Tensor
    y: Tensor
    xx: Covariance
    yy: Covariance
    xy: Covariance | None

    def __getitem__(self, part: slice) -> Pairs:
        xy = None if self.xy is None else self.xy.select(part)
        covariances = self.xx.select(part), self.yy.select(part), xy
        return Pairs(self.x[part], self.y[part], *covariances)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """C_xx, C_yy, C_xy [B, Z, Z]."""
        xx, yy = self.xx.dense(), self.yy.dense()
        return xx, yy, torch.zeros_like(xx) if self.xy is None else self.xy.dense()
