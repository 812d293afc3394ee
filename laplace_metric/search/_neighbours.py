"""Nearest items and the moments of their distances, exact, compact or shared.

Of an item with D head inputs and Z outputs an index keeps D + Z numbers, the D of them so that
distances can know which weights both embeddings share. Without them, errors count as independent
and the same in all directions: with m and s of ``laplace._dense_moments`` and
``v = (s_x^2 + s_y^2) / Z``

    E|x - y|^2 = |m_x - m_y|^2 + Z v                     exact for independent errors
    Var|x - y|^2 = 4 |m_x - m_y|^2 v + 2 Z v^2           of a Gaussian that is round

Shared weights cancel where x and y are alike, so these deviations of near neighbours are too large;
a calibration learns what they are worth.

Expected distance between uncertain embeddings, as a plain distance of one more coordinate.

For independent x and y with means m and ``s^2 = E|z|^2 - |m|^2``, the trace of the covariance,

    E|x - y|^2 = |m_x - m_y|^2 + s_x^2 + s_y^2 = |[m_x, 0] - [m_y, s_y]|^2 + s_x^2      (exact)

so an engine that knows nothing of uncertainty ranks a gallery stored as ``[m_y, s_y]`` by expected
distance. On the sphere E z is shorter than the mean direction u: with t the trace of the tangent
covariance, as ``ProjectedNormal`` has it,

    m = u / sqrt(1 + t)     s^2 = 1 - |m|^2 = t / (1 + t)

The closed form of Chun 2024 (PCME++, CSD) is the same with m = u and s^2 = t.

The nearest items of each query, and the distance to each with the weights that both share.

The engine proposes by one of three rankings; distances are then computed pair by pair.

"mean"        distance of the means, as without uncertainty
"expected"    expected distance of independent embeddings: one more coordinate (``moments``)
"shared"      expected distance under shared weights: the means' shortlist, ranked again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.curvature._eigenbases import IdentityEigenbasis, KroneckerEigenbasis
from laplace_metric.errors import FileFormatError, NonFiniteError
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.laplace import Distance, Fitted, _predictive_covariance
from laplace_metric.laplace._embedding_pairs import EmbeddingPairs, SpectralPairs
from laplace_metric.laplace._squared_distance import squared_distance
from laplace_metric.search._columns import Encoded

COMPACT_BYTES = 2**24
"""Of the means of items that are gathered at once."""


class RoundErrors:
    """Moments of the squared distance of (query, item) pairs, from means and traces alone.

    Parameters
    ----------
    spherical : bool
        Whether embeddings are directions.
    """

    def __init__(self, *, spherical: bool) -> None:
        self.spherical = spherical

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """[Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""
        mean, variance = torch.empty(2, *positions.shape).to(queries.mean)
        n_outputs, spherical = queries.mean.shape[1], self.spherical
        step = max(1, COMPACT_BYTES // (positions.shape[1] * queries.mean[:1].nbytes))
        for start in range(0, len(positions), step):
            block = slice(start, start + step)
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


def moments(
    mean: Float[Tensor, "N Z"], trace: Float[Tensor, " N"], *, spherical: bool
) -> tuple[Tensor, Tensor]:
    """``m`` [N, Z] and ``s`` [N] of embeddings ``mean`` [N, Z] with ``trace`` [N] >= 0.

    Examples
    --------
    >>> m, s = moments(torch.tensor([[1.0, 0.0]]), torch.tensor([3.0]), spherical=True)
    >>> m, s ** 2
    (tensor([[0.5000, 0.0000]]), tensor([0.7500]))
    """
    if not spherical:
        return mean, trace.sqrt()
    length = (1 + trace).rsqrt()
    return mean * length[:, None], (trace * length.square()).sqrt()


def gallery_vectors(
    mean: Float[Tensor, "N Z"], trace: Float[Tensor, " N"], *, spherical: bool
) -> Float[Tensor, "N Z_plus_1"]:
    """``[m, s]`` [N, Z + 1], to store in any engine that ranks by Euclidean distance.

    Examples
    --------
    >>> gallery_vectors(torch.zeros(1, 2), torch.tensor([4.0]), spherical=False)
    tensor([[0., 0., 2.]])
    """
    m, s = moments(mean, trace, spherical=spherical)
    return torch.cat([m, s[:, None]], 1)


def query_vectors(
    mean: Float[Tensor, "Q Z"], trace: Float[Tensor, " Q"], *, spherical: bool
) -> Float[Tensor, "Q Z_plus_1"]:
    """``[m, 0]`` [Q, Z + 1]: the query for such an engine.

    Examples
    --------
    >>> query_vectors(torch.ones(1, 2), torch.tensor([4.0]), spherical=False)
    tensor([[1., 1., 0.]])
    """
    m, _ = moments(mean, trace, spherical=spherical)
    return torch.cat([m, torch.zeros_like(m[:, :1])], 1)


RANKINGS = ("mean", "expected", "shared")
PAIR_BYTES, MEAN_BYTES = 2**22, 2**24
"""Of the head inputs of pairs, and of the means of items, that are gathered at once."""
SHORTLIST = 4
"""Times k: neighbours that "shared" ranks again."""
BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"

RowSearch = Callable[[Tensor, int], Tensor]
"""Vectors of the queries [Q, d] and k -> rows of the items [Q, k], or -1: ``Engine.search``."""


class PairMoments(Protocol):
    """Moments of the squared distance of (query, item) pairs."""

    @property
    def spherical(self) -> bool:
        """True if covariances are of tangents of the sphere."""

    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """[Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""


class PairDistances:
    """Moments of the squared distance of (query, item) pairs, from what is kept of each.

    A linear head with a diagonal or Kronecker posterior needs one product [pairs, A] x [A, Z]: with
    ``x = Q_A^T [h; 1]``, ``M = Q_S^T [W, b] Q_A`` and the variances V of the weights in that basis,
    ``z = M x`` and ``C(x, y) = diag(V (x y))`` in Q_S; M and V are [Z, A]. Any other head needs the
    covariances of each pair, [Z, Z]. In float32, squared distances on the sphere below some 1e-6
    (near duplicates) are rounding.

    Parameters
    ----------
    fitted : Fitted
        Head and posterior that embedded both.
    spherical : bool
        Whether embeddings are directions.
    """

    def __init__(self, fitted: Fitted, *, spherical: bool) -> None:
        self.spherical = spherical
        self._fitted: Fitted | None = fitted
        self._right: Tensor | None = None
        head, posterior = fitted.jacobian, fitted.posterior
        basis = posterior.basis
        known = isinstance(basis, (IdentityEigenbasis, KroneckerEigenbasis))
        if not known or not isinstance(head, LinearJacobian):
            return
        self._fitted, self._layout = None, head.layout
        self._weights = head.layout.fold(head.parameters)
        self._variances = head.layout.fold(posterior.spectrum)
        if isinstance(basis, KroneckerEigenbasis):
            (block,) = basis.blocks
            self._weights = block.left.mT @ self._weights @ block.right
            self._variances, self._right = block.fold(posterior.spectrum), block.right

    def basis_inputs(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N A"]:
        """Return what is kept of head inputs: those themselves, or x [N, A]."""
        if self._fitted is not None:
            return h
        x = self._layout.augment(h)
        return x if self._right is None else x @ self._right

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """[Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""
        row_bytes = queries.basis_inputs.shape[1] * queries.basis_inputs.element_size()
        step = max(1, PAIR_BYTES // (positions.shape[1] * row_bytes))
        means, variances = queries.mean.new_full((2, *positions.shape), torch.inf)
        for start in range(0, len(positions), step):
            block = positions[start : start + step]
            row, rank = (block >= 0).nonzero(as_tuple=True)
            if len(row) == 0:
                continue
            needed, item = block[row, rank].unique(return_inverse=True)
            x = queries.basis_inputs[start : start + step]
            y = items.basis_inputs[needed.to(items.basis_inputs.device)].to(x)
            squared = self._of(x, y, row, item)
            means[row + start, rank], variances[row + start, rank] = squared.mean, squared.variance
        return Distance(means, variances)

    def _of(self, x: Tensor, y: Tensor, i: Tensor, j: Tensor) -> Distance:
        """Return the distances of the pairs (x_i, y_j), from x [q, A], y [n, A], rows i, j."""
        if self._fitted is not None:
            head, posterior, a, b = self._fitted.jacobian, self._fitted.posterior, x[i], y[j]
            sides = [(a, None), (b, None), (a, b)]
            covariances = [
                _predictive_covariance.covariance(head, posterior, *side) for side in sides
            ]
            pairs = EmbeddingPairs(head.forward(a), head.forward(b), *covariances)
            return squared_distance(pairs, spherical=self.spherical)
        m, v = self._weights.mT, self._variances.mT
        z_x, z_y = x @ m, y @ m  # [q, Z], [n, Z]
        a, b = x.square() @ v, y.square() @ v
        spectral = SpectralPairs(z_x[i], z_y[j], a[i], b[j], (x[i] * y[j]) @ v)
        return squared_distance(spectral, spherical=self.spherical)


def vectors_of(items: Encoded, rank_by: str, *, spherical: bool) -> Float[Tensor, "N d"]:
    """Return the vectors that the engine stores [N, d]: d is Z, or Z + 1 for "expected"."""
    if rank_by == "expected":
        return gallery_vectors(items.mean, items.trace, spherical=spherical)
    return items.mean


def nearest(
    search: RowSearch, queries: Encoded, items: Encoded, pairs: PairMoments, k: int, rank_by: str
) -> SearchHits:
    """Return the k nearest items of each query, and their distances.

    Raises
    ------
    FileFormatError
        If a saved index holds embeddings of another width than this model's.
    """
    width, stored = queries.mean.shape[1], items.mean.shape[1]
    if width != stored:
        raise FileFormatError(
            f"this index holds embeddings of {stored} numbers, the model gives {width}: build the "
            "index again with this model."
        )
    vectors = queries.mean
    if rank_by == "expected":
        vectors = query_vectors(queries.mean, queries.trace, spherical=pairs.spherical)
    depth = min(len(items), SHORTLIST * k) if rank_by == "shared" else k
    positions = search(vectors, depth).to(queries.mean.device)
    squared = pairs(queries, items, positions)
    if rank_by == "shared":
        positions, squared = _reranked(positions, squared, k)
    distance = _distances_of_means(queries, items, positions)
    _check_distances(distance, squared, positions)
    return SearchHits(
        positions.cpu().numpy(),
        _float64(distance),
        _float64(_deviation(squared, positions)),
        _float64(queries.trace),
        _float64(queries.epistemic),
    )


def _float64(numbers: Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = numbers.detach().cpu().double().numpy()
    return array


def _deviation(squared: Distance, positions: Tensor) -> Tensor:
    """Standard deviation of the distance [Q, k]: ``sd(d^2) / (2 sqrt(E d^2))``.

    The delta method about ``sqrt(E d^2)``: exact to first order where the distance is large
    against its error; for a distance that is all error, in r equal directions, 1 / (8 r) too
    large (a factor 1.17 at r = 1). 0 where E d^2 is 0, which rounding can put below 0; infinite
    where there is no neighbour.
    """
    there = squared.mean > 0
    spread = squared.standard_deviation / (2 * squared.mean.where(there, 1.0).sqrt())
    return spread.where(there, 0.0).masked_fill(positions < 0, torch.inf)


def _check_distances(distance: Tensor, squared: Distance, positions: Tensor) -> None:
    fine = distance.isfinite() & squared.mean.isfinite() & squared.variance.isfinite()
    bad = ~(fine | (positions < 0)).all(1)
    if bool(bad.any()):
        raise NonFiniteError(
            f"distances of {int(bad.sum())} of {len(bad)} queries overflow {distance.dtype}: "
            "scale the inputs of the index and the queries down, or use float64."
        )


def _reranked(positions: Tensor, squared: Distance, k: int) -> tuple[Tensor, Distance]:
    order = squared.mean.argsort(dim=1, stable=True)[:, :k]
    moments = (m.gather(1, order) for m in (squared.mean, squared.variance))
    return positions.gather(1, order), Distance(*moments)


def _distances_of_means(queries: Encoded, items: Encoded, positions: Tensor) -> Tensor:
    """[Q, k], from differences; infinite where there is no item."""
    distance = torch.full_like(positions, torch.inf, dtype=queries.mean.dtype)
    step = max(1, MEAN_BYTES // (positions.shape[1] * items.mean[:1].nbytes))
    for start in range(0, len(positions), step):
        block = slice(start, start + step)
        rows = positions[block].clamp(min=0).to(items.mean.device)
        means, centre = items.mean[rows].to(queries.mean), queries.mean[block, None]
        distance[block] = torch.cdist(centre, means, compute_mode=BY_DIFFERENCES)[:, 0]
    return distance.masked_fill(positions < 0, torch.inf)
