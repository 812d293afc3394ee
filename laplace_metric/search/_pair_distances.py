"""Moments of the distances of pairs, with the weights that both embeddings share.

Moments of distances from means and traces alone: errors that are independent and round.

Of an item with D head inputs and Z outputs an index stores D + Z numbers, the D of them so that
distances can know which weights both embeddings share. Without them, errors count as independent
and the same in all directions: with m and s of ``_expected_vectors`` and
``v = (s_x^2 + s_y^2) / Z``

    E|x - y|^2 = |m_x - m_y|^2 + Z v                     exact for independent errors
    Var|x - y|^2 = 4 |m_x - m_y|^2 v + 2 Z v^2           of a Gaussian that is round

Shared weights cancel where x and y are alike, so these deviations of near neighbours are too large;
a calibration learns what they are worth.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import CACHE_BYTES, blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature._eigenbases import IdentityEigenbasis, KroneckerEigenbasis
from laplace_metric.laplace import Distance, Fitted, _predictive_covariance
from laplace_metric.laplace.distance._embedding_pairs import EmbeddingPairs, SpectralPairs
from laplace_metric.laplace.distance._spectral_moments import difference_moments
from laplace_metric.laplace.distance._squared_distance import squared_distance
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._expected_vectors import moments

MANY = 4
"""Pairs an item, from which on the products of all items are computed at once."""


Rows = tuple[Float[Tensor, "n Z"], Float[Tensor, "n A"]]
"""Means and inputs of the head, in the basis of the posterior, of some queries or items."""


class PairMoments(Protocol):
    """Moments of the squared distance of (query, item) pairs."""

    @property
    def spherical(self) -> bool:
        """True if covariances are of tangents of the sphere."""

    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """Return [Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""


class PairDistances:
    """Moments of the squared distance of (query, item) pairs, from what is kept of each.

    A linear head with a diagonal or Kronecker posterior needs one product [pairs, A] x [A, Z]: with
    ``x = Q_A^T [h; 1]``, ``M = Q_S^T [W, b] Q_A`` and the variances V of the weights in that basis,
    ``z = M x`` and ``C(x, y) = diag(V (x y))`` in Q_S; M and V are [Z, A]. Off the sphere z is the
    stored mean, and where all outputs vary alike it need not be seen in Q_S. Any other head needs
    the covariances of each pair, [Z, Z]. In float32, squared distances on the sphere below some
    1e-6 (near duplicates) are rounding.

    Parameters
    ----------
    fitted : Fitted
        Head and posterior that embedded both.
    spherical : bool
        True if embeddings are directions on the sphere.
    """

    def __init__(self, fitted: Fitted, *, spherical: bool) -> None:
        self.spherical = spherical
        self._fitted: Fitted | None = fitted
        self._right: Tensor | None = None
        self._left: Tensor | None = None
        self._weights: Tensor | None = None
        head, posterior = fitted.jacobian, fitted.posterior
        basis = posterior.basis
        known = isinstance(basis, (IdentityEigenbasis, KroneckerEigenbasis))
        if not known or not head.linear:
            return
        (layout,) = head.layouts
        self._fitted, self._layout = None, layout
        self._variances, left = layout.fold(posterior.spectrum), None
        if isinstance(basis, KroneckerEigenbasis):
            (block,) = basis.blocks
            self._variances, self._right = block.fold(posterior.spectrum), block.right
            left = block.left
        if not spherical and bool((self._variances == self._variances[:1]).all()):
            # S = s I, so that all coordinates vary alike, in any basis
            self._variances, left = self._variances[:1], None
        self._left = left
        if spherical:  # where the stored means are of length 1
            self._weights = layout.fold(head.parameters)
            if left is not None and self._right is not None:
                self._weights = left.mT @ self._weights @ self._right

    @property
    def in_basis(self) -> bool:
        """True if what is kept of head inputs is seen in the basis of the posterior."""
        return self._fitted is None

    def basis_inputs(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N A"]:
        """Return what is kept of head inputs: those themselves, or x [N, A]."""
        if self._fitted is not None:
            return h
        x = self._layout.augment(h)
        return x if self._right is None else x @ self._right

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """Return [Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""
        row_bytes = queries.basis_inputs.shape[1] * queries.basis_inputs.element_size()
        means, variances = queries.mean.new_full((2, *positions.shape), torch.inf)
        # where there are many more pairs than items, what depends on the item alone is computed
        # once; it is not kept, since it has up to twice the numbers of the items
        whole = self._fitted is None and positions.numel() > MANY * len(items)
        seen = self._seen(*_rows(items, slice(None), queries.mean)) if whole else None
        for part in blocks(len(positions), positions.shape[1] * row_bytes, CACHE_BYTES):
            block, start = positions[part], part.start
            row, rank = (block >= 0).nonzero(as_tuple=True)
            if len(row) == 0:
                continue
            x, item = _rows(queries, part, queries.mean), block[row, rank]
            if seen is not None:
                y = items.basis_inputs[item.to(items.basis_inputs.device)].to(x[1])
                squared = self._of_seen(x, y, row, [one[item] for one in seen])
            else:
                needed, place = item, torch.arange(len(item), device=item.device)
                if len(block) > 1:  # of one query all items differ
                    needed, place = item.unique(return_inverse=True)
                squared = self._of(x, _rows(items, needed, queries.mean), row, place)
            means[row + start, rank], variances[row + start, rank] = squared.mean, squared.variance
        return Distance(means, variances)

    def _of(self, x: Rows, y: Rows, i: Tensor, j: Tensor) -> Distance:
        """Return the distances of the pairs (x_i, y_j), of q and n rows."""
        if self._fitted is not None:
            head, posterior = self._fitted.jacobian, self._fitted.posterior
            a, b = x[1][i], y[1][j]
            covariances = _predictive_covariance.covariances_of_pairs(
                head, posterior, a, b, spherical=self.spherical
            )
            pairs = EmbeddingPairs(head.forward(a), head.forward(b), *covariances)
            return squared_distance(pairs, spherical=self.spherical)
        return self._of_seen(x, y[1][j], i, [part[j] for part in self._seen(*y)])

    def _seen(self, mean: Float[Tensor, "n Z"], x: Float[Tensor, "n A"]) -> list[Tensor]:
        """Return z in Q_S, and on the sphere the diagonal ``V x^2`` of C(x, x), [n, Z] each."""
        if self._weights is None:
            return [mean if self._left is None else mean @ self._left]
        return [x @ self._weights.mT, x.square() @ self._variances.mT]

    def _of_seen(self, x: Rows, y: Tensor, i: Tensor, seen: list[Tensor]) -> Distance:
        """Return the distances of the pairs (x_i, y), from q rows, y [pairs, A] and _seen of y."""
        own, inputs = [part[i] for part in self._seen(*x)], x[1][i]
        if self.spherical:
            shared = (inputs * y) @ self._variances.mT
            pairs = SpectralPairs(own[0], seen[0], own[1], seen[1], shared)
            return squared_distance(pairs, spherical=True)
        # C(x, x) + C(y, y) - 2 C(x, y) is V (x - y)^2: one product, and no difference of large ones
        spread = (inputs - y).square() @ self._variances.mT
        return Distance(*difference_moments(own[0] - seen[0], spread))


def _rows(encoded: Encoded, rows: Tensor | slice, like: Tensor) -> Rows:
    """Return means and inputs of some rows, in the type and on the device of ``like``."""
    at = rows if isinstance(rows, slice) else rows.to(encoded.mean.device)
    return encoded.mean[at].to(like), encoded.basis_inputs[at].to(like)


class RoundErrors:
    """Moments of the squared distance of (query, item) pairs, from means and traces alone.

    Parameters
    ----------
    spherical : bool
        True if embeddings are directions.
    """

    def __init__(self, *, spherical: bool) -> None:
        self.spherical = spherical

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """Return moments [Q, k] for the items at ``positions``; those at -1 are infinitely far."""
        mean, variance = torch.empty(2, *positions.shape).to(queries.mean)
        n_outputs, spherical = queries.mean.shape[1], self.spherical
        for block in blocks(len(positions), positions.shape[1] * queries.mean[:1].nbytes):
            rows = positions[block].clamp(min=0).to(items.mean.device)
            of_items = (x[rows.flatten()].to(queries.mean) for x in (items.mean, items.trace))
            m_y, s_y = moments(*of_items, spherical=spherical)
            m_x, s_x = moments(queries.mean[block], queries.trace[block], spherical=spherical)
            d_2 = (m_x[:, None] - m_y.view(*rows.shape, -1)).square().sum(-1)
            v = (s_x.square()[:, None] + s_y.square().view_as(rows)) / n_outputs
            mean[block] = d_2 + n_outputs * v
            variance[block] = 4 * d_2 * v + 2 * n_outputs * v.square()
        nobody = positions < 0
        return Distance(*(m.masked_fill(nobody, torch.inf) for m in (mean, variance)))
