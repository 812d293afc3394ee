"""Moments of the squared distance where all covariances are diagonal in one basis: O(Z) a pair.

The formulas are those of ``_squared_distance``; no matrix [Z, Z] is formed. With a diagonal or a
Kronecker posterior and a linear head, ``C_xx = diag(a)``, ``C_yy = diag(b)``, ``C_xy = diag(w)`` in
the basis of the outputs, and so is everything but the projection to the tangents, which adds four
directions. With p = 1 / r_x, q = 1 / r_y, u, v the directions:

    T = diag(e) + u g^T + g u^T + v h^T + h v^T
    e = p^2 a + q^2 b - 2 p q w
    g = p^2 (u.au / 2 u - a u) + p q (w u - u.wv / 2 v)
    h = q^2 (v.bv / 2 v - b v) + p q (w v - u.wv / 2 u)

    m^T T m = e . m^2 + 2 (m.u) (m.g) + 2 (m.v) (m.h)
    tr T^2  = e . e + 4 e . (u g + v h) + sum_ij G_s(i)j G_s(j)i
    tr T    = sum(e) + 2 (u.g + v.h)

with G the products of (u, g, v, h) with each other and s, which swaps u with g and v with h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.laplace.distance._embedding_pairs import SpectralPairs

SWAPPED = [1, 0, 3, 2]
"""The order s of (u, g, v, h) that swaps u with g and v with h."""


def spectral_moments(pairs: SpectralPairs, *, spherical: bool) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance of the squared distance, [B] each."""
    if spherical:
        return _on_the_sphere(pairs)
    return difference_moments(pairs.x - pairs.y, pairs.a + pairs.b - 2 * pairs.w)


def difference_moments(m: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the moments of ``|d|^2`` for B differences d ~ N(m, diag(c)).

    Parameters
    ----------
    m : Tensor [B, Z]
        Means of the differences.
    c : Tensor [B, Z] or [B, 1]
        Variances of the differences; one column where all coordinates have the same.
    """
    square, alike = m.square(), m.shape[1] // c.shape[1]
    mean = square.sum(1) + alike * c.sum(1)
    return mean, (4 * _dot(square, c) + 2 * alike * c.square().sum(1)).clamp_min(0)


def _on_the_sphere(pairs: SpectralPairs) -> tuple[Tensor, Tensor]:
    p, q = (1 / z.norm(dim=1, keepdim=True) for z in (pairs.x, pairs.y))  # [B, 1]
    u, v = pairs.x * p, pairs.y * q  # [B, Z]
    m, c = u - v, (u * v).sum(1)
    t_x, turn_x = _spread_and_turn(pairs.a, u, v, p, c)
    t_y, turn_y = _spread_and_turn(pairs.b, v, u, q, c)
    shrink = (1 + t_x) * (1 + t_y)
    e, g, h = _tangent_difference(pairs, u, v, p, q)
    trace = e.sum(1) + 2 * (_dot(u, g) + _dot(v, h))
    k = (t_x + t_y - trace) / 2 - turn_x - turn_y  # tr T = t_x + t_y - 2 tr(P_x C_xy P_y)
    mean = 2 - 2 * ((c + k) * shrink.rsqrt()).clamp(-1, 1)
    variance = _quadratic_variance(m, e, u, g, v, h) / shrink
    return mean, variance.minimum(mean * (4 - mean))  # no variable in [0, 4] has more


def _spread_and_turn(
    a: Tensor, u: Tensor, v: Tensor, p: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``tr(P C P)`` and ``(v - c u)^T C u / r^2`` [B]."""
    # C = diag(a), so C u = a u: tr(P C P) = (tr C - u.au) / r^2, (v - c u).C u = v.au - c u.au
    au, square = a * u, p[:, 0].square()
    along = _dot(u, au)
    return (a.sum(1) - along) * square, (_dot(v, au) - c * along) * square


def _tangent_difference(
    pairs: SpectralPairs, u: Tensor, v: Tensor, p: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute e, g and h [B, Z] of ``T = diag(e) + u g^T + g u^T + v h^T + h v^T``."""
    # P_x C_xx P_x = p^2 (diag(a) - u (au)^T - (au) u^T + (u.au) u u^T), likewise of y; and
    # P_x C_xy P_y = p q (diag(w) - u (wu)^T - (wv) v^T + (u.wv) u v^T), which is subtracted with
    # its transpose: one half of its last term is in g, the other half in h
    a, b, w = p.square() * pairs.a, q.square() * pairs.b, p * q * pairs.w
    crossed = (u * w * v).sum(1, keepdim=True) / 2
    g = (u * a * u).sum(1, keepdim=True) / 2 * u - a * u + w * u - crossed * v
    h = (v * b * v).sum(1, keepdim=True) / 2 * v - b * v + w * v - crossed * u
    return a + b - 2 * w, g, h


def _quadratic_variance(m: Tensor, e: Tensor, u: Tensor, g: Tensor, v: Tensor, h: Tensor) -> Tensor:
    """Return ``4 m^T T m + 2 tr T^2`` [B]."""
    # T = diag(e) + R with R = X^T S X, X = (u, g, v, h) [4, Z] and S the swap
    form = _dot(e, m.square()) + 2 * (_dot(m, u) * _dot(m, g) + _dot(m, v) * _dot(m, h))
    # tr T^2 = e.e + 2 tr(diag(e) R) + tr R^2, and tr R^2 = tr (G S)^2 with G = X X^T: R is never
    # written out, so a pair costs O(Z) and not O(Z^2)
    rows = torch.stack([u, g, v, h], 1)  # [B, 4, Z]
    products = (rows @ rows.mT)[:, SWAPPED]  # S G [B, 4, 4]
    square = e.square().sum(1) + 4 * _dot(e, u * g + v * h) + (products * products.mT).sum((1, 2))
    return (4 * form + 2 * square).clamp_min(0)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1)
