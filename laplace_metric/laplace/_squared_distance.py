"""The squared distance of two uncertain embeddings: its mean and variance for B pairs.

``squared_distance`` chooses the method: ``_spectral_moments`` where the covariances share a basis,
``_dense_moments`` elsewhere; with ``exact`` the pairs on the sphere whose spread is large go to
``_chord_quadrature``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric.laplace._chord_quadrature import exact_chord
from laplace_metric.laplace._dense_moments import dense_moments
from laplace_metric.laplace._embedding_pairs import EmbeddingPairs, SpectralPairs, in_shared_basis
from laplace_metric.laplace._spectral_moments import spectral_moments


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
BLOCK_BYTES = 64 * 2**20
"""Memory of the arrays of one block of pairs."""
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
    # a block's arrays fit BLOCK_BYTES: 16 of [b, Z] in a shared basis, [b, Z, Z] elsewhere
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
