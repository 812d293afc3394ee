"""Candidates among the gallery: fast shortlists, with a bound on their rounding error.

    |q - g|^2 - |q|^2 = [q, 1] . [-2 g, |g|^2]      one matrix product, q and g about the centre
    error <= 8 (sqrt(Z) + 4) eps (|q| + max |g|)^2

The error of a dot product of length Z grows as sqrt(Z) eps (Higham & Mary 2019, SIAM J. Sci.
Comput. 41(5)); the bound leaves room for its constant.

Exact nearest neighbours by reranking candidates, each time more exactly and more slowly.

A matrix product gives squared distances fast, but ``|q|^2 + |g|^2 - 2 q.g`` loses the small ones
to cancellation. So a reranker says which of its rows are certain, and only the uncertain queries go
to the next one; the last knows every distance from its differences.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import MissingPackageError

BLOCK_BYTES = 2**23
"""Of the gallery, read at once by ``block_candidates``."""
WORK_BYTES = 2**26
"""Of its distances to all queries."""


class Shortlist(NamedTuple):
    """M candidates of B queries: no other item is nearer than ``squared.max() - error_bound``.

    Attributes
    ----------
    indices : Tensor [B, M]
        Rows of the gallery.
    squared : Tensor [B, M]
        Approximate squared distances, ascending, float64.
    error_bound : Tensor [B]
        Of their rounding errors.
    complete : bool
        Whether the candidates are all items there are.
    """

    indices: Tensor
    squared: Tensor
    error_bound: Tensor
    complete: bool


CandidateSearch = Callable[[Tensor, int, Tensor | None], Shortlist]
"""(queries [B, Z], M, excluded index [B] or None) -> shortlist."""


def rounding_error_bound(
    centred: Float[Tensor, "B Z"], reach: Float[Tensor, ""]
) -> Float[Tensor, " B"]:
    """Bound [B] on the rounding of squared distances by a matrix product; ``reach`` is max |g|."""
    norms = centred.double().square().sum(1).sqrt()
    growth = 8 * (math.sqrt(centred.shape[1]) + 4) * torch.finfo(centred.dtype).eps
    return growth * (norms + reach).square()


def block_candidates(gallery: Float[Tensor, "G Z"], dtype: torch.dtype) -> CandidateSearch:
    """Shortlists by matrix products in ``dtype``, block by block of the gallery.

    Memory O(B m) and a block of ``BLOCK_BYTES``: the gallery is not copied and may be a memory map.
    """
    centre = _mean(gallery)
    step = max(1, BLOCK_BYTES // (gallery.shape[1] * gallery.element_size()))

    def search(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries.to(dtype) - centre.to(dtype)
        best, reach = centred.new_empty(len(queries), 0), centred.new_zeros(())
        indices = best.long()
        wide = min(step, max(256, WORK_BYTES // (centred.element_size() * len(queries))))
        for start in range(0, len(gallery), wide):
            points = gallery[start : start + wide].to(dtype) - centre.to(dtype)
            lengths = points.square().sum(1)
            partial = torch.addmm(lengths, centred, points.T, alpha=-2)  # [B, block]
            _leave_out(partial, exclude, start)
            best, indices = _smallest(best, indices, partial, start, m)
            reach = reach.maximum(lengths.max())
        squared = best.double() + centred.double().square().sum(1, True)
        available = len(gallery) - (exclude is not None)
        error_bound = rounding_error_bound(centred, reach.double().sqrt())
        return Shortlist(indices, squared, error_bound, m == available)

    return search


def _mean(gallery: Tensor) -> Tensor:
    """Average some thousand rows: a centre near the middle is enough for rounding."""
    stride = max(1, len(gallery) // 4096)
    return gallery[::stride].double().mean(0)


def _leave_out(partial: Tensor, exclude: Tensor | None, start: int) -> None:
    if exclude is not None:
        rows = ((exclude >= start) & (exclude < start + partial.shape[1])).nonzero().flatten()
        partial[rows, exclude[rows] - start] = torch.inf


def _smallest(
    best: Tensor, indices: Tensor, partial: Tensor, start: int, m: int
) -> tuple[Tensor, Tensor]:
    """The m smallest of those so far and of a block that begins at ``start``, ascending."""
    values, columns = partial.topk(min(m, partial.shape[1]), dim=1, largest=False)
    pool, rows = torch.cat([best, values], 1), torch.cat([indices, columns + start], 1)
    smallest, order = pool.topk(min(m, pool.shape[1]), dim=1, largest=False)
    return smallest, rows.gather(1, order)


def faiss_candidates(gallery: Float[Tensor, "G Z"]) -> CandidateSearch:
    """Shortlists by ``faiss.IndexFlatL2`` about the gallery's centre.

    One more is asked for where one is excluded: the ranking drops it when it shows up.
    """
    faiss = require_faiss()
    centre = gallery.mean(0)
    points = gallery - centre
    reach = points.square().sum(1).max().double().sqrt()
    index = faiss.IndexFlatL2(gallery.shape[1])
    index.add(points.contiguous().numpy())

    def search(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries - centre
        depth = m + (exclude is not None)
        squared, indices = map(torch.from_numpy, index.search(centred.contiguous().numpy(), depth))
        complete = depth == gallery.shape[0] and bool((indices >= 0).all())
        error_bound = rounding_error_bound(centred, reach)
        return Shortlist(indices.clamp(min=0), squared.double(), error_bound, complete)

    return search


def faiss_fits(points: Float[Tensor, "N Z"]) -> bool:
    """FAISS is installed and the points are what it holds: float32 in main memory."""
    in_reach = points.dtype == torch.float32 and points.device.type == "cpu"
    return in_reach and importlib.util.find_spec("faiss") is not None


def require_faiss() -> Any:
    """The module, or ``MissingPackageError``."""
    if importlib.util.find_spec("faiss") is None:
        needed = "this engine (Flat(), the default, works without)"
        raise MissingPackageError("faiss", needed, "pip install faiss-cpu")
    import faiss

    return faiss


SPARE = 16
"""Candidates beyond the k that are asked for."""
LARGE_K = 64
"""From this k on, ranking by the differences of a whole shortlist costs more than it settles."""
MOST = 2**28
"""Bytes of all distances of the queries that are settled one item after the other."""


class Reranked(NamedTuple):
    """Indices [B, k], distances [B, k] in float64, and which rows are certain [B]."""

    indices: Tensor
    distances: Tensor
    certain: Tensor


def nearest_rows(
    queries: Float[Tensor, "Q Z"],
    gallery: Float[Tensor, "G Z"],
    k: int,
    fast: CandidateSearch,
    careful: CandidateSearch,
    exclude: Int[Tensor, " Q"] | None = None,
) -> tuple[Int[Tensor, "Q k"], Float[Tensor, "Q k"]]:
    """Return the k nearest rows [Q, k] of each query, and their float64 distances [Q, k].

    Parameters
    ----------
    fast, careful : CandidateSearch
        In the type of the gallery; and in float64, for the queries that ``fast`` cannot settle.
        What neither settles is ranked by the differences to every row.
    """
    shortlisted = row_block((k + SPARE) * gallery.shape[1] // 2, device=gallery.device)
    every = max(1, MOST // (8 * len(gallery)))
    first = partial(_by_shortlist, search=fast)
    if k >= LARGE_K:
        first = partial(_by_gaps, search=careful)
    stages = (
        (first, shortlisted),
        (partial(_by_shortlist, search=careful), shortlisted),
        (_by_every_difference, every),
    )
    indices = torch.empty(queries.shape[0], k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(indices.shape, dtype=torch.float64, device=queries.device)
    rows = torch.arange(queries.shape[0], device=queries.device)
    for ranked, size in stages:
        uncertain = [rows[:0]]
        for block in rows.split(size):
            left_out = None if exclude is None else exclude[block]
            result = ranked(queries[block], left_out, gallery, k)
            indices[block], distances[block] = result.indices, result.distances
            uncertain.append(block[~result.certain])
        rows = torch.cat(uncertain)
        if not len(rows):
            break
    return indices, distances


def row_block(row_bytes: int, device: torch.device) -> int:
    """Rows of a block that fits the caches of the device, at most 256 MiB of work."""
    cache, most = 2**28 if device.type == "cuda" else 2**24, 2**28
    return max(cache // row_bytes, min(64, most // row_bytes), 1)


def _by_shortlist(
    queries: Tensor, exclude: Tensor | None, gallery: Tensor, k: int, search: CandidateSearch
) -> Reranked:
    """Rank a shortlist by its differences; certain when nothing outside of it can be as near."""
    m = min(k + SPARE, gallery.shape[0] - (exclude is not None))
    short = search(queries, m, exclude)
    candidates, order = short.indices.sort(dim=1)
    exact = _from_differences(queries[:, None], gallery[candidates]).squeeze(1)  # [B, M]
    error = (exact.square() - short.squared.gather(1, order)).abs().amax(1)
    if exclude is not None:
        exact = exact.masked_fill(candidates == exclude[:, None], torch.inf)
    positions, distances = _rank(exact, k)
    beyond = short.squared.amax(1) - torch.maximum(short.error_bound, 4 * error)
    settled = (beyond > distances[:, -1].square()) | short.complete
    certain = settled & short.squared.isfinite().all(1)
    return Reranked(candidates.gather(1, positions), distances, certain)


def _by_gaps(
    queries: Tensor, exclude: Tensor | None, gallery: Tensor, k: int, search: CandidateSearch
) -> Reranked:
    """Rank as the candidates come; certain where the gaps exceed twice the rounding error.

    The distances are as exact as the gallery's type: at most 1e-10 of their value for float64.
    """
    tolerance = max(torch.finfo(gallery.dtype).eps, 1e-10)
    m = min(k + 1, gallery.shape[0] - (exclude is not None))
    short = search(queries, m, exclude)
    apart = (short.squared.diff(dim=1) > 2 * short.error_bound[:, None]).all(1)
    certain = apart & (tolerance * short.squared[:, 0] > short.error_bound)
    return Reranked(short.indices[:, :k], short.squared[:, :k].clamp(min=0).sqrt(), certain)


def _by_every_difference(
    queries: Tensor, exclude: Tensor | None, gallery: Tensor, k: int
) -> Reranked:
    """Rank the whole gallery by its differences; certain always."""
    exact = _from_differences(queries, gallery)
    if exclude is not None:
        exact.scatter_(1, exclude[:, None], torch.inf)
    positions, distances = _rank(exact, k)
    return Reranked(positions, distances, torch.ones_like(positions[:, 0], dtype=torch.bool))


def _from_differences(queries: Tensor, gallery: Tensor) -> Tensor:
    """Euclidean distances in float64, free of cancellation."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries.double(), gallery.double(), compute_mode=mode)


def _rank(distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row, ascending; equal distances keep the order of the columns."""
    ordered, positions = distances.sort(dim=1, stable=True)
    return positions[:, :k], ordered[:, :k]
