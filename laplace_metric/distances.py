"""The squared distance of two uncertain embeddings, with or without shared weights.

A query and a gallery item are embedded by the SAME network, so their errors are correlated: with
``C_xx, C_yy`` the covariances of ``z_x, z_y`` and ``C_xy`` the one between them,

    raw:     d = z_x - z_y ~ N(m, C),  C = C_xx + C_yy - C_xy - C_yx
             E |d|^2 = |m|^2 + tr C             Var |d|^2 = 4 m^T C m + 2 tr C^2        (exact)
    sphere:  f = |u_x - u_y|^2 = 2 - 2 c,  c = <u_x, u_y>, to second order in the spread
             E f = f + 1/2 tr(H_xx C_xx) + 1/2 tr(H_yy C_yy) + tr(H_xy C_yx)
             Var f = 4 m^T T m + 2 tr T^2,  m = u_x - u_y,  T the covariance of u_x - u_y

with H the second derivatives of f (twice those of Warburg et al. 2023, LAM, eqs 94-97) and
T = P_x C_xx P_x + P_y C_yy P_y - P_x C_xy P_y - P_y C_yx P_x, P = (I - u u^T) / r. Leaving C_xy out
treats the two as independent: the closed-form sampled distance (CSD) of PCME++ (Chun 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.distributions import Covariance

BLOCK_BYTES = 64 * 2**20
"""Largest [b, Z, Z] array of one block of pairs."""


@dataclass(frozen=True)
class Distance:
    """Mean and variance of the squared Euclidean distance of B pairs.

    Parameters
    ----------
    mean, variance : Tensor [B]
        On the sphere the squared distance is ``2 - 2 cos``, in [0, 4].
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
    xy : Tensor [B, Z, Z] or None
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


def squared_distance(pairs: Pairs, *, spherical: bool) -> Distance:
    """Moments of the squared distance, block by block.

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance
    >>> one = DiagonalCovariance(torch.ones(1, 2))
    >>> x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> squared_distance(Pairs(x, y, one, one, None), spherical=False).mean
    tensor([13.])
    """
    moments = _on_the_sphere if spherical else _raw
    size = pairs.x.shape[1] ** 2 * pairs.x.element_size()
    step = max(1, BLOCK_BYTES // size)
    parts = [moments(pairs[i : i + step]) for i in range(0, len(pairs.x), step)]
    means, variances = zip(*parts, strict=True)
    return Distance(torch.cat(means), torch.cat(variances))


def _raw(pairs: Pairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    m, c = pairs.x - pairs.y, xx + yy - xy - xy.mT
    return m.square().sum(1) + _trace(c), _quadratic_variance(m, c)


def _on_the_sphere(pairs: Pairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    (u, r), (v, q) = _direction(pairs.x), _direction(pairs.y)
    c = (u * v).sum(1)
    mean = 2 - 2 * c + _curved(xx, u, v, r, c) + _curved(yy, v, u, q, c)
    mean = mean + _crossed(xy, u, v, r * q, c)
    p, s = _tangent(u, r), _tangent(v, q)
    cross = p @ xy @ s.mT
    t = p @ xx @ p.mT + s @ yy @ s.mT - cross - cross.mT
    return mean, _quadratic_variance(u - v, t)


def _curved(cov: Tensor, u: Tensor, v: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """``1/2 tr(H_xx C_xx) = (c tr C + 2 u^T C v - 3 c u^T C u) / r^2`` [B]."""
    return (c * _trace(cov) + 2 * _form(u, cov, v) - 3 * c * _form(u, cov, u)) / r.square()


def _crossed(cov: Tensor, u: Tensor, v: Tensor, rq: Tensor, c: Tensor) -> Tensor:
    """``tr(H_xy C_yx) = 2 (-tr C + u^T C u + v^T C v - c u^T C v) / (r q)``, C = C_xy [B]."""
    inner = _form(u, cov, u) + _form(v, cov, v) - c * _form(u, cov, v)
    return 2 * (inner - _trace(cov)) / rq


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
