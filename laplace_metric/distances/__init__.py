"""The squared distance of two uncertain embeddings, with or without shared weights.

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

import torch
from torch import Tensor

from laplace_metric.distances.dense import dense_moments
from laplace_metric.distances.pairs import Distance, Pairs
from laplace_metric.distances.shared_basis import SpectralPairs, in_shared_basis, spectral_moments

__all__ = ["Distance", "Pairs", "SpectralPairs", "squared_distance", "squared_distance_in_basis"]

BLOCK_BYTES = 64 * 2**20
"""Size of the arrays of one block of pairs."""
SPECTRAL_ARRAYS = 16
"""Of one block where the covariances share a basis."""


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
    spectral = in_shared_basis(pairs)
    if spectral is not None:
        return squared_distance_in_basis(spectral, spherical=spherical)
    return _by_blocks(dense_moments, pairs, pairs.x.shape[1], spherical)


def squared_distance_in_basis(pairs: SpectralPairs, *, spherical: bool) -> Distance:
    """The same for pairs that are seen in the basis of their covariances."""
    return _by_blocks(spectral_moments, pairs, SPECTRAL_ARRAYS, spherical)


def _by_blocks(
    moments: Callable[..., tuple[Tensor, Tensor]],
    pairs: Pairs | SpectralPairs,
    arrays: int,
    spherical: bool,
) -> Distance:
    """Blocks whose ``arrays`` arrays [b, Z] are at most ``BLOCK_BYTES``."""
    size = arrays * pairs.x.shape[1] * pairs.x.element_size()
    step = max(1, BLOCK_BYTES // size)
    parts = [
        moments(pairs[i : i + step], spherical=spherical) for i in range(0, len(pairs.x), step)
    ]
    means, variances = zip(*parts, strict=True)
    return Distance(torch.cat(means), torch.cat(variances))
