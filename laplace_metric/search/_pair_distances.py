"""Distances between queries and some items of each, with the weights that both share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature.structures import IdentityEigenbasis, KroneckerEigenbasis
from laplace_metric.laplace import (
    Distance,
    EmbeddingPairs,
    Fitted,
    Posterior,
    SpectralPairs,
    squared_distance,
    squared_distance_in_basis,
)
from laplace_metric.laplace import _posterior as predictive
from laplace_metric.models.jacobians import LinearJacobian
from laplace_metric.search._encoding import Encoded

BLOCK_BYTES = 2**22
"""Of the words of the pairs that are gathered at once."""


Map = Callable[[Tensor], Tensor]
OfPairs = Callable[[Tensor, Tensor, Tensor, Tensor], Distance]
"""Of the pairs (x_i, y_j) of words x [q, D], y [n, D]."""


class PairDistances:
    """Moments of the squared distance of (query, item) pairs, from what is kept of each.

    A linear head with a diagonal or Kronecker posterior needs one product [pairs, D] x [D, Z];
    any other head the covariances of each pair, [Z, Z]. In float32, squared distances on the sphere
    below some 1e-6 (near duplicates) are rounding.

    Parameters
    ----------
    fitted : Fitted
        Head and posterior that embedded both.
    spherical : bool
    """

    def __init__(self, fitted: Fitted, *, spherical: bool) -> None:
        basis, head = fitted.posterior.basis, fitted.jacobian
        self.spherical = spherical
        if isinstance(head, LinearJacobian) and isinstance(
            basis, (IdentityEigenbasis, KroneckerEigenbasis)
        ):
            self.words, self._of = _spectral(head, fitted.posterior, spherical)
        else:
            self.words, self._of = _dense(fitted, spherical)

    words: Map
    """What is kept of head inputs h [n, D]: those themselves, or [h; 1] in the basis Q_A."""

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Tensor) -> Distance:
        """[Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""
        size = positions.shape[1] * queries.words.shape[1] * queries.words.element_size()
        step = max(1, BLOCK_BYTES // size)
        means, variances = queries.mean.new_full((2, *positions.shape), torch.inf)
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            row, rank = (part >= 0).nonzero(as_tuple=True)
            if len(row) == 0:
                continue
            needed, place = part[row, rank].unique(return_inverse=True)
            x = queries.words[start : start + step]
            y = items.words[needed.to(items.words.device)].to(x)
            found = self._of(x, y, row, place)
            means[row + start, rank], variances[row + start, rank] = found.mean, found.variance
        return Distance(means, variances)


def _dense(fitted: Fitted, spherical: bool) -> tuple[Map, OfPairs]:
    head, posterior = fitted.jacobian, fitted.posterior

    def of(x: Tensor, y: Tensor, i: Tensor, j: Tensor) -> Distance:
        a, b = x[i], y[j]
        sides = [(a, None), (b, None), (a, b)]
        covariances = [predictive.covariance(head, posterior, *side) for side in sides]
        return squared_distance(
            EmbeddingPairs(head.forward(a), head.forward(b), *covariances), spherical=spherical
        )

    return lambda h: h, of


def _spectral(head: LinearJacobian, posterior: Posterior, spherical: bool) -> tuple[Map, OfPairs]:
    """In Q_S: ``z = M x``, ``C = diag(V (x y))``; ``x = Q_A^T h``, ``M = Q_S^T [W, b] Q_A``."""
    layout, basis = head.layout, posterior.basis
    weights = layout.fold(head.parameters)
    words: Map = layout.augment
    variances = layout.fold(posterior.spectrum)
    if isinstance(basis, KroneckerEigenbasis):
        (block,) = basis.blocks
        weights = block.left.mT @ weights @ block.right
        words, variances = lambda h: layout.augment(h) @ block.right, block.fold(posterior.spectrum)

    def of(x: Tensor, y: Tensor, i: Tensor, j: Tensor) -> Distance:
        z_x, z_y = x @ weights.mT, y @ weights.mT
        a, b = x.square() @ variances.mT, y.square() @ variances.mT
        w = (x[i] * y[j]) @ variances.mT
        pairs = SpectralPairs(z_x[i], z_y[j], a[i], b[j], w)
        return squared_distance_in_basis(pairs, spherical=spherical)

    return words, of
