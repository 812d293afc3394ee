"""Exact nearest neighbours by reranking candidates, each time more exactly and more slowly.

A matrix product gives squared distances fast, but ``|q|^2 + |g|^2 - 2 q.g`` loses the small ones
to cancellation. So a reranker reports which of its rows are certain, and only the uncertain queries
go to the next one; the last knows every distance from its differences.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import block_rows
from laplace_metric.evaluation._shortlists import CandidateSearch

SPARE = 16
"""Number of candidates in addition to the k that are asked for."""
LARGE_K = 64
"""Value of k from which ranking by the differences of a whole shortlist does not pay."""
WIDEST_BYTES = 2**28
"""Memory of the distances to all items, for the queries that no shortlist settles."""


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
    queries, gallery : Tensor [Q, Z], [G, Z]
        Embeddings of the queries and of the gallery.
    k : int
        Number of rows returned for each query.
    fast, careful : CandidateSearch
        Search in the type of the gallery; and search in float64, for the queries that ``fast``
        cannot settle. Queries that neither settles are ranked by their differences to every row.
    exclude : Tensor [Q] or None
        Row of the gallery that each query leaves out. None, the default: no row.
    """
    shortlisted = row_block((k + SPARE) * gallery.shape[1] // 2, device=gallery.device)
    every = block_rows(8 * len(gallery), WIDEST_BYTES)
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
    """Return the number of rows of a block that fits the caches of the device (at most 256 MiB)."""
    most = block_rows(row_bytes, WIDEST_BYTES)
    return most if device.type == "cuda" else block_rows(row_bytes, least=min(64, most))


def _by_shortlist(
    queries: Tensor, exclude: Tensor | None, gallery: Tensor, k: int, search: CandidateSearch
) -> Reranked:
    """Rank a shortlist by its differences; certain when nothing outside of it can be as near."""
    m = min(k + SPARE, gallery.shape[0] - (exclude is not None))
    short = search(queries, m, exclude)
    candidates, order = short.indices.sort(dim=1)
    size = row_block(12 * m * gallery.shape[1], device=gallery.device)  # as given, and in float64
    exact = torch.empty_like(candidates, dtype=torch.float64)
    for start in range(0, len(candidates), size):
        part = slice(start, start + size)
        apart = _from_differences(queries[part, None], gallery[candidates[part]])
        exact[part] = apart[:, 0]  # a list of parts scatters the memory
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
    """Rank in the order of the candidates; certain where gaps exceed twice the rounding error.

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
    """Return Euclidean distances in float64, free of cancellation."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries.double(), gallery.double(), compute_mode=mode)


def _rank(distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k smallest of each row, ascending; ties keep the order of the columns."""
    ordered, positions = distances.sort(dim=1, stable=True)
    return positions[:, :k], ordered[:, :k]
