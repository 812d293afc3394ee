"""The same moments where every covariance is diagonal in one basis: O(Z) a pair, no [Z, Z].

With a diagonal or a Kronecker posterior and a linear head, ``C_xx = diag(a)``, ``C_yy = diag(b)``,
``C_xy = diag(w)`` in the basis of the outputs, and so is everything but the projection to the
tangents, which adds four directions. With p = 1 / r_x, q = 1 / r_y, u, v the directions:

    T = diag(e) + u g^T + g u^T + v h^T + h v^T
    e = p^2 a + q^2 b - 2 p q w
    g = p^2 (u.au / 2 u - a u) + p q (w u - u.wv / 2 v)
    h = q^2 (v.bv / 2 v - b v) + p q (w v - u.wv / 2 u)

    m^T T m = e . m^2 + 2 (m.u) (m.g) + 2 (m.v) (m.h)
    tr T^2  = e . e + 4 e . (u g + v h) + sum_ij G_s(i)j G_s(j)i
    tr T    = sum(e) + 2 (u.g + v.h)

with G the products of (u, g, v, h) with each other and s, which swaps u with g and v with h.

The squared distance of two uncertain embeddings, with or without shared weights.

A query and a gallery item are embedded by the SAME network, so their errors are correlated: with
``C_xx, C_yy`` the covariances of ``z_x, z_y`` and ``C_xy`` the one between them,

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

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from laplace_metric.distributions import Covariance, DiagonalCovariance
from laplace_metric.distributions._gaussian import RotatedCovariance
from laplace_metric.laplace._moments import (
    Distance,
    EmbeddingPairs,
    SpectralPairs,
    dense_moments,
    exact_chord,
)

SWAPPED = [1, 0, 3, 2]
Moments = Callable[..., tuple[Tensor, Tensor]]
"""Pairs, and ``spherical`` -> mean and variance [B]."""


def in_shared_basis(pairs: EmbeddingPairs) -> SpectralPairs | None:
    """The pairs in the basis that all their covariances share, if there is one."""
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


def spectral_moments(pairs: SpectralPairs, *, spherical: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance [B]."""
    return _on_the_sphere(pairs) if spherical else _raw(pairs)


def _raw(pairs: SpectralPairs) -> tuple[Tensor, Tensor]:
    m, c = pairs.x - pairs.y, pairs.a + pairs.b - 2 * pairs.w
    mean = m.square().sum(1) + c.sum(1)
    return mean, (4 * _dot(m.square(), c) + 2 * c.square().sum(1)).clamp_min(0)


def _on_the_sphere(pairs: SpectralPairs) -> tuple[Tensor, Tensor]:
    p, q = (1 / z.norm(dim=1, keepdim=True) for z in (pairs.x, pairs.y))
    u, v = pairs.x * p, pairs.y * q
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
    """``tr(P C P)`` and ``(v - c u)^T C u / r^2`` [B]."""
    au, square = a * u, p[:, 0].square()
    along = _dot(u, au)
    return (a.sum(1) - along) * square, (_dot(v, au) - c * along) * square


def _tangent_difference(
    pairs: SpectralPairs, u: Tensor, v: Tensor, p: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """e, g and h [B, Z]."""
    a, b, w = p.square() * pairs.a, q.square() * pairs.b, p * q * pairs.w
    crossed = (u * w * v).sum(1, keepdim=True) / 2
    g = (u * a * u).sum(1, keepdim=True) / 2 * u - a * u + w * u - crossed * v
    h = (v * b * v).sum(1, keepdim=True) / 2 * v - b * v + w * v - crossed * u
    return a + b - 2 * w, g, h


def _quadratic_variance(m: Tensor, e: Tensor, u: Tensor, g: Tensor, v: Tensor, h: Tensor) -> Tensor:
    """``4 m^T T m + 2 tr T^2`` [B]."""
    form = _dot(e, m.square()) + 2 * (_dot(m, u) * _dot(m, g) + _dot(m, v) * _dot(m, h))
    rows = torch.stack([u, g, v, h], 1)
    products = (rows @ rows.mT)[:, SWAPPED]
    square = e.square().sum(1) + 4 * _dot(e, u * g + v * h) + (products * products.mT).sum((1, 2))
    return (4 * form + 2 * square).clamp_min(0)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1)


BLOCK_BYTES = 64 * 2**20
"""Size of the arrays of one block of pairs."""
SPECTRAL_ARRAYS = 16
"""Of one block where the covariances share a basis."""


EXACT_FROM = 1e-3
"""Mean squared chord between a draw and its mean, from which the second order is not enough."""


def squared_distance(
    pairs: EmbeddingPairs | SpectralPairs, *, spherical: bool, exact: bool = False
) -> Distance:
    """Moments of the squared distance, block by block.

    ``exact``: on the sphere by quadrature (``_moments``) instead of to second order, at about 300
    times the arithmetic.

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance
    >>> one = DiagonalCovariance(torch.ones(1, 2))
    >>> x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> squared_distance(EmbeddingPairs(x, y, one, one, None), spherical=False).mean
    tensor([13.])
    """
    if isinstance(pairs, EmbeddingPairs):
        pairs = in_shared_basis(pairs) or pairs
    in_basis = isinstance(pairs, SpectralPairs)
    moments: Moments = spectral_moments if in_basis else dense_moments
    if exact and spherical:
        moments = partial(_exact_on_the_sphere, moments)
    # blocks whose arrays [b, Z] are at most BLOCK_BYTES
    arrays = SPECTRAL_ARRAYS if in_basis else pairs.x.shape[1]
    step = max(1, BLOCK_BYTES // (arrays * pairs.x.shape[1] * pairs.x.element_size()))
    parts = [
        moments(pairs[i : i + step], spherical=spherical)
        for i in range(0, max(1, len(pairs.x)), step)
    ]
    means, variances = zip(*parts, strict=True)
    return Distance(torch.cat(means), torch.cat(variances))


def _exact_on_the_sphere(
    second_order: Moments, pairs: EmbeddingPairs | SpectralPairs, *, spherical: bool
) -> tuple[Tensor, Tensor]:
    """Second order where a draw stays near its mean, the quadrature elsewhere."""
    mean, variance = second_order(pairs, spherical=spherical)
    if isinstance(pairs, SpectralPairs):
        traces = pairs.a.sum(1), pairs.b.sum(1)
    else:
        traces = pairs.xx.diagonal().sum(1), pairs.yy.diagonal().sum(1)
    lengths = pairs.x.square().sum(1), pairs.y.square().sum(1)
    spread = torch.maximum(traces[0] / lengths[0], traces[1] / lengths[1])
    wide = (spread > EXACT_FROM) & (spread * mean * variance).isfinite()
    if bool(wide.any()):
        mean[wide], variance[wide] = exact_chord(pairs[wide])
    return mean, variance
