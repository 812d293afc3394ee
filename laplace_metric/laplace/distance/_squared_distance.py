"""The squared distance of two uncertain embeddings: its mean and variance for B pairs.

``squared_distance`` chooses the method: ``_spectral_moments`` where the covariances share a basis,
the moments below elsewhere; with ``exact`` the pairs on the sphere whose spread is large go to
``_chord_quadrature``.

The squared distance under one of several posteriors, each as likely as any other.

E d = mean_m E d_m        Var d = mean_m Var d_m + mean_m (E d_m - E d)^2

Moments of the squared distance of two uncertain embeddings, from any covariances [Z, Z].

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, blocks
from laplace_metric._utils.display import Shown
from laplace_metric.laplace.distance._chord_quadrature import exact_chord
from laplace_metric.laplace.distance._embedding_pairs import (
    EmbeddingPairs,
    SpectralPairs,
    in_shared_basis,
)
from laplace_metric.laplace.distance._spectral_moments import spectral_moments


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


@dataclass(frozen=True, repr=False)
class Distance(Shown):
    """Mean and variance of the squared Euclidean distance of B pairs.

    Parameters
    ----------
    mean, variance : Tensor [B]
        Moments of the squared distance of each pair, in squared units of the embeddings. On the
        sphere the squared distance is ``2 - 2 cos``: its mean is kept in [0, 4], its variance below
        ``mean (4 - mean)``, the most that a variable in [0, 4] can have.
        ``LaplaceEmbedder.distance`` computes them by quadrature, ``Index.search`` to second order.
    """

    mean: Tensor
    variance: Tensor

    @property
    def standard_deviation(self) -> Tensor:
        """Standard deviation of the squared distance of each pair, [B]."""
        return self.variance.sqrt()


Moments = Callable[..., tuple[Tensor, Tensor]]
"""Function of pairs and ``spherical`` that returns the mean and the variance, [B] each."""
SPECTRAL_ARRAYS = 16
"""Number of arrays [b, Z] that a block needs where the covariances share a basis."""
EXACT_FROM = 1e-3
"""Spread ``tr C / |z|^2`` of a direction above which the second order is not accurate enough."""


def squared_distance(
    pairs: EmbeddingPairs | SpectralPairs, *, spherical: bool, exact: bool = False
) -> Distance:
    """Compute the moments of the squared distance, block by block.

    Parameters
    ----------
    pairs : EmbeddingPairs or SpectralPairs
        B pairs of raw embeddings with their covariances.
    spherical : bool
        Measure the distance between directions, ``2 - 2 cos``, not between raw embeddings.
    exact : bool
        Use the quadrature of ``_chord_quadrature`` on the sphere, instead of the second order, for
        pairs whose spread is above ``EXACT_FROM``. It needs about 300 times the arithmetic.
        Default: False.

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
    # the arrays of a block: 16 of [b, Z] in a shared basis, [b, Z, Z] elsewhere
    n_arrays, n_pairs = SPECTRAL_ARRAYS if in_basis else pairs.x.shape[1], max(1, len(pairs.x))
    pair_bytes = n_arrays * pairs.x.shape[1] * pairs.x.element_size()
    parts = [
        moments(pairs[part], spherical=spherical)
        for part in blocks(n_pairs, pair_bytes, LARGE_BYTES)
    ]
    means, variances = zip(*parts, strict=True)
    return Distance(torch.cat(means), torch.cat(variances))


def _exact_on_the_sphere(
    second_order: Moments, pairs: EmbeddingPairs | SpectralPairs, *, spherical: bool
) -> tuple[Tensor, Tensor]:
    """Compute to second order, and again by quadrature where a draw may be far from its mean."""
    mean, variance = second_order(pairs, spherical=spherical)
    if isinstance(pairs, SpectralPairs):
        traces = pairs.a.sum(1), pairs.b.sum(1)
    else:
        traces = pairs.xx.diagonal().sum(1), pairs.yy.diagonal().sum(1)
    lengths = pairs.x.square().sum(1), pairs.y.square().sum(1)
    spread = torch.maximum(traces[0] / lengths[0], traces[1] / lengths[1])
    # what is not finite stays so: the caller's check names the rows
    wide = (spread > EXACT_FROM) & (spread * mean * variance).isfinite()
    if bool(wide.any()):
        mean[wide], variance[wide] = exact_chord(pairs[wide])
    return mean, variance


def mixed_distance(distances: Sequence[Distance]) -> Distance:
    """Return the moments of the mixture; pairs that are infinitely far stay so.

    Examples
    --------
    >>> near, far = (Distance(torch.tensor([m]), torch.tensor([0.5])) for m in (1.0, 3.0))
    >>> mixed_distance([near, far]).variance
    tensor([1.5000])
    """
    means = torch.stack([distance.mean for distance in distances])
    variances = torch.stack([distance.variance for distance in distances])
    mean = means.mean(0)
    between = (means - mean).square().mean(0).where(mean.isfinite(), 0.0)
    return Distance(mean, variances.mean(0) + between)
