"""Expected distance between uncertain embeddings, as a plain distance of one more coordinate.

For independent x and y with means m and ``s^2 = E|z|^2 - |m|^2``, the trace of the covariance,

    E|x - y|^2 = |m_x - m_y|^2 + s_x^2 + s_y^2 = |[m_x, 0] - [m_y, s_y]|^2 + s_x^2      (exact)

so an engine that knows nothing of uncertainty ranks a gallery stored as ``[m_y, s_y]`` by expected
distance. On the sphere E z is shorter than the mean direction u: with t the trace of the tangent
covariance, as ``ProjectedNormal`` has it,

    m = u / sqrt(1 + t)     s^2 = 1 - |m|^2 = t / (1 + t)

The closed form of Chun 2024 (PCME++, CSD) is the same with m = u and s^2 = t.

By what neighbours are ranked: what the engine is given, and what is done with its shortlist.

"mean"        distance of the means, as without uncertainty
"expected"    expected distance of independent embeddings: one more coordinate (``moments``)
"shared"      expected distance under shared weights: the means' shortlist, ranked again
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.errors import UnknownNameError
from laplace_metric.laplace import Distance
from laplace_metric.search._encoding import Encoded
from laplace_metric.search._pair_distances import PairDistances
from laplace_metric.search.engines import Engine
from laplace_metric.search.match import SearchHits


def moments(mean: Tensor, trace: Tensor, *, spherical: bool) -> tuple[Tensor, Tensor]:
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


def gallery_vectors(mean: Tensor, trace: Tensor, *, spherical: bool) -> Tensor:
    """``[m, s]`` [N, Z + 1], to store in any engine that ranks by Euclidean distance.

    Examples
    --------
    >>> gallery_vectors(torch.zeros(1, 2), torch.tensor([4.0]), spherical=False)
    tensor([[0., 0., 2.]])
    """
    m, s = moments(mean, trace, spherical=spherical)
    return torch.cat([m, s[:, None]], 1)


def query_vectors(mean: Tensor, trace: Tensor, *, spherical: bool) -> Tensor:
    """``[m, 0]`` [Q, Z + 1]: what to ask such an engine for.

    Examples
    --------
    >>> query_vectors(torch.ones(1, 2), torch.tensor([4.0]), spherical=False)
    tensor([[1., 1., 0.]])
    """
    m, _ = moments(mean, trace, spherical=spherical)
    return torch.cat([m, torch.zeros_like(m[:, :1])], 1)


RANKINGS = ("mean", "expected", "shared")
EXACT = "donot_use_mm_for_euclid_dist"
BLOCK_BYTES = 2**24
"""Of the means of the items that are gathered at once."""
SHORTLIST = 4
"""Times k: neighbours that "shared" ranks again."""


def check_ranking(rank_by: str) -> str:
    """``UnknownNameError`` unless it is one of ``RANKINGS``."""
    if rank_by not in RANKINGS:
        raise UnknownNameError("rank_by", rank_by, RANKINGS)
    return rank_by


def vectors_of(items: Encoded, rank_by: str, *, spherical: bool) -> Tensor:
    """What the engine stores [N, d]."""
    if rank_by == "expected":
        return gallery_vectors(items.mean, items.trace, spherical=spherical)
    return items.mean


def nearest(
    engine: Engine, queries: Encoded, items: Encoded, pairs: PairDistances, k: int, rank_by: str
) -> SearchHits:
    """The k nearest items of each query, and their distances."""
    if rank_by == "expected":
        asked = query_vectors(queries.mean, queries.trace, spherical=pairs.spherical)
    else:
        asked = queries.mean
    wanted = min(len(items), SHORTLIST * k) if rank_by == "shared" else k
    positions = engine.search(asked, wanted).positions.to(queries.mean.device)
    squared = pairs(queries, items, positions)
    if rank_by == "shared":
        positions, squared = _ranked_again(positions, squared, k)
    return SearchHits(positions, _distances(queries, items, positions), squared, queries.trace)


def _ranked_again(positions: Tensor, squared: Distance, k: int) -> tuple[Tensor, Distance]:
    order = squared.mean.argsort(dim=1, stable=True)[:, :k]
    moments = (m.gather(1, order) for m in (squared.mean, squared.variance))
    return positions.gather(1, order), Distance(*moments)


def _distances(queries: Encoded, items: Encoded, positions: Tensor) -> Tensor:
    """Between the means [Q, k], from their differences; infinite where there is no item."""
    found = torch.full_like(positions, torch.inf, dtype=queries.mean.dtype)
    step = max(1, BLOCK_BYTES // (positions.shape[1] * items.mean[:1].nbytes))
    for start in range(0, len(positions), step):
        part = slice(start, start + step)
        rows = positions[part].clamp(min=0).to(items.mean.device)
        means = items.mean[rows].to(queries.mean)
        found[part] = torch.cdist(queries.mean[part, None], means, compute_mode=EXACT)[:, 0]
    return found.masked_fill(positions < 0, torch.inf)
