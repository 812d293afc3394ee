"""Pairs of uncertain embeddings: the input of everything that computes a squared distance.

A query and a gallery item are embedded by the SAME network, so their errors are correlated:
``EmbeddingPairs`` holds both covariances and the one between them. Where all three are diagonal in
one basis, ``SpectralPairs`` holds the pairs in that basis, with three vectors in the place of three
matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.distributions import Covariance, DiagonalCovariance
from laplace_metric.distributions._covariance import RotatedCovariance


@dataclass(frozen=True)
class EmbeddingPairs:
    """B pairs of Gaussian raw embeddings.

    Parameters
    ----------
    x, y : Tensor [B, Z]
        Means of the raw embeddings: row i of x and row i of y are one pair.
    xx, yy : Covariance
        Covariance of each z_x and of each z_y.
    xy : Covariance or None
        ``Cov[z_x, z_y]`` of each pair; None if the two are independent.
    """

    x: Tensor
    y: Tensor
    xx: Covariance
    yy: Covariance
    xy: Covariance | None

    def __getitem__(self, part: slice | Tensor) -> EmbeddingPairs:
        xx, yy = self.xx.select(part), self.yy.select(part)
        xy = None if self.xy is None else self.xy.select(part)
        return EmbeddingPairs(self.x[part], self.y[part], xx, yy, xy)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return C_xx, C_yy, C_xy [B, Z, Z]."""
        xx, yy = self.xx.dense(), self.yy.dense()
        return xx, yy, torch.zeros_like(xx) if self.xy is None else self.xy.dense()


@dataclass(frozen=True)
class SpectralPairs:
    """B pairs in the common eigenbasis of their covariances.

    Parameters
    ----------
    x, y : Tensor [B, Z]
        Coordinates of the means.
    a, b, w : Tensor [B, Z]
        Diagonals of ``C_xx``, ``C_yy`` and ``C_xy``.
    """

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    w: Tensor

    def __getitem__(self, part: slice | Tensor) -> SpectralPairs:
        return SpectralPairs(*(t[part] for t in (self.x, self.y, self.a, self.b, self.w)))


def in_shared_basis(pairs: EmbeddingPairs) -> SpectralPairs | None:
    """Return the pairs in the basis that all their covariances share, or None without one."""
    covariances = [c for c in (pairs.xx, pairs.yy, pairs.xy) if c is not None]
    if all(isinstance(c, DiagonalCovariance) for c in covariances):
        x, y = pairs.x, pairs.y
    elif isinstance(pairs.xx, RotatedCovariance) and all(_like(pairs.xx, c) for c in covariances):
        x, y = pairs.x @ pairs.xx.basis, pairs.y @ pairs.xx.basis
    else:
        return None
    values = [c.values for c in covariances]  # type: ignore[attr-defined]
    if pairs.xy is None:
        values.append(torch.zeros_like(values[0]))
    return SpectralPairs(x, y, *values)


def _like(first: RotatedCovariance, other: Covariance) -> bool:
    return isinstance(other, RotatedCovariance) and other.basis is first.basis
