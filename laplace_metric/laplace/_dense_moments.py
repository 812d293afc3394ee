"""Moments of the squared distance of two uncertain embeddings, from any covariances [Z, Z].

With ``C_xx, C_yy`` the covariances of ``z_x, z_y`` and ``C_xy`` the one between them,

    raw:     d = z_x - z_y ~ N(m, C),  C = C_xx + C_yy - C_xy - C_yx
             E |d|^2 = |m|^2 + tr C             Var |d|^2 = 4 m^T C m + 2 tr C^2        (exact)
    sphere:  f = |u_x - u_y|^2 = 2 - 2 c, c = <u_x, u_y>, m = u_x - u_y
             E c = (c + k) / sqrt((1 + t_x) (1 + t_y))
             Var f = (4 m^T T m + 2 tr T^2) / ((1 + t_x) (1 + t_y))

on the sphere with P = (I - u u^T) / r, t = tr(P C P) the spread of a direction, T the covariance of
P_x z_x - P_y z_y, and

    k = tr(P_x C_xy P_y) - (u_y - c u_x)^T C_xx u_x / r_x^2 - (u_x - c u_y)^T C_yy u_y / r_y^2

Both agree with the delta method to leading order (E c to second order in the spread, from the
second derivatives of Warburg et al. 2023, LAM, eqs 94-97); the denominators keep them in range
where a spread is not small, since ``E |z|^2 = r^2 (1 + t)`` up to the radial part. Leaving C_xy out
treats the two as independent: the closed-form sampled distance (CSD) of PCME++ (Chun 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.laplace._embedding_pairs import EmbeddingPairs


def dense_moments(pairs: EmbeddingPairs, *, spherical: bool) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance of the squared distance, [B] each."""
    return _on_the_sphere(pairs) if spherical else _raw(pairs)


def _raw(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    m, c = pairs.x - pairs.y, xx + yy - xy - xy.mT  # C_yx = C_xy^T
    return m.square().sum(1) + _trace(c), _quadratic_variance(m, c)


def _on_the_sphere(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    (u, r), (v, q) = _direction(pairs.x), _direction(pairs.y)
    p, s = _tangent(u, r), _tangent(v, q)
    # [B, Z, Z] each: covariances of the tangent parts P_x z_x and P_y z_y, and between them
    t_x, t_y, cross = p @ xx @ p, s @ yy @ s, p @ xy @ s
    c = (u * v).sum(1)
    # E c is c + k to second order: tangent parts that move together, less turns that go with length
    k = _trace(cross) - _coupling(xx, u, v, r, c) - _coupling(yy, v, u, q, c)
    # both lengths have E |z|^2 = r^2 (1 + t): dividing by them keeps E c in range at any spread
    shrink = (1 + _trace(t_x)) * (1 + _trace(t_y))
    mean = 2 - 2 * ((c + k) * shrink.rsqrt()).clamp(-1, 1)
    # f = |u - v|^2 moves with d = P_x z_x - P_y z_y ~ N(u - v, T) as |d|^2 does without a sphere
    variance = _quadratic_variance(u - v, t_x + t_y - cross - cross.mT) / shrink
    return mean, variance.minimum(mean * (4 - mean))  # no variable in [0, 4] has more


def _coupling(cov: Tensor, u: Tensor, v: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Compute ``(v - c u)^T C u / r^2`` [B], the turn towards or away from v of a longer z."""
    return _form(v - c[:, None] * u, cov, u) / r.square()


def _quadratic_variance(m: Tensor, c: Tensor) -> Tensor:
    """Compute Var |d|^2 for ``d ~ N(m, C)``: ``4 m^T C m + 2 tr C^2`` [B]."""
    # tr C^2 is the sum of squares of the entries, for C is symmetric: no product [Z, Z] x [Z, Z]
    return (4 * _form(m, c, m) + 2 * c.square().sum((1, 2))).clamp_min(0)


def _direction(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the direction u [B, Z] and the length r [B] of z."""
    r = z.norm(dim=1)
    return z / r[:, None], r


def _tangent(u: Tensor, r: Tensor) -> Tensor:
    """Return ``(I - u u^T) / r`` [B, Z, Z]."""
    identity = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / r[:, None, None]


def _form(left: Tensor, cov: Tensor, right: Tensor) -> Tensor:
    """Return ``l^T C r`` [B]."""
    return torch.einsum("bk,bkl,bl->b", left, cov, right)


def _trace(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=1, dim2=2).sum(1)
