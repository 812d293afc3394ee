"""Pairs of uncertain embeddings, and the moments of their squared distance.

Any covariances, [Z, Z] of each pair written out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric.distributions import Covariance


@dataclass(frozen=True, repr=False)
class Distance(Shown):
    """Mean and variance of the squared Euclidean distance of B pairs.

    Parameters
    ----------
    mean, variance : Tensor [B]
        On the sphere the squared distance is ``2 - 2 cos``: its mean is kept in [0, 4], its
        variance below ``mean (4 - mean)``, the most that a variable in [0, 4] can have.
        ``LaplaceEmbedder.distance`` gives them by quadrature, ``Index.search`` to second order.
    """

    mean: Tensor
    variance: Tensor

    @property
    def standard_deviation(self) -> Tensor:
        """[B]."""
        return self.variance.sqrt()


@dataclass(frozen=True)
class EmbeddingPairs:
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

    def __getitem__(self, part: slice | Tensor) -> EmbeddingPairs:
        xy = None if self.xy is None else self.xy.select(part)
        covariances = self.xx.select(part), self.yy.select(part), xy
        return EmbeddingPairs(self.x[part], self.y[part], *covariances)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """C_xx, C_yy, C_xy [B, Z, Z]."""
        xx, yy = self.xx.dense(), self.yy.dense()
        return xx, yy, torch.zeros_like(xx) if self.xy is None else self.xy.dense()


@dataclass(frozen=True)
class SpectralPairs:
    """B pairs seen in the basis of their covariances: x, y and a, b, w [B, Z]."""

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    w: Tensor

    def __getitem__(self, part: slice | Tensor) -> SpectralPairs:
        return SpectralPairs(*(t[part] for t in (self.x, self.y, self.a, self.b, self.w)))


def dense_moments(pairs: EmbeddingPairs, *, spherical: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance [B]."""
    return _on_the_sphere(pairs) if spherical else _raw(pairs)


def _raw(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    m, c = pairs.x - pairs.y, xx + yy - xy - xy.mT
    return m.square().sum(1) + _trace(c), _quadratic_variance(m, c)


def _on_the_sphere(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    (u, r), (v, q) = _direction(pairs.x), _direction(pairs.y)
    p, s = _tangent(u, r), _tangent(v, q)
    t_x, t_y, cross = p @ xx @ p, s @ yy @ s, p @ xy @ s
    c = (u * v).sum(1)
    k = _trace(cross) - _coupling(xx, u, v, r, c) - _coupling(yy, v, u, q, c)
    shrink = (1 + _trace(t_x)) * (1 + _trace(t_y))
    mean = 2 - 2 * ((c + k) * shrink.rsqrt()).clamp(-1, 1)
    variance = _quadratic_variance(u - v, t_x + t_y - cross - cross.mT) / shrink
    return mean, variance.minimum(mean * (4 - mean))  # no variable in [0, 4] has more


def _coupling(cov: Tensor, u: Tensor, v: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """``(v - c u)^T C u / r^2`` [B]: how a longer z turns towards or away from v."""
    return _form(v - c[:, None] * u, cov, u) / r.square()


def _quadratic_variance(m: Tensor, c: Tensor) -> Tensor:
    """Var |d|^2 for ``d ~ N(m, C)``: ``4 m^T C m + 2 tr C^2`` [B]."""
    return (4 * _form(m, c, m) + 2 * c.square().sum((1, 2))).clamp_min(0)


def _direction(z: Tensor) -> tuple[Tensor, Tensor]:
    """u [B, Z] and r [B]."""
    r = z.norm(dim=1)
    return z / r[:, None], r


def _tangent(u: Tensor, r: Tensor) -> Tensor:
    """``(I - u u^T) / r`` [B, Z, Z]."""
    identity = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / r[:, None, None]


def _form(left: Tensor, cov: Tensor, right: Tensor) -> Tensor:
    """``l^T C r`` [B]."""
    return torch.einsum("bk,bkl,bl->b", left, cov, right)


def _trace(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=1, dim2=2).sum(1)
