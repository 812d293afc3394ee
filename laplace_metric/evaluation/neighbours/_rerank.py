"""Exact nearest neighbours by reranking candidates, each time more exactly and more slowly.

A matrix product gives squared distances fast, but ``|q|^2 + |g|^2 - 2 q.g`` loses the small ones
to cancellation. So a reranker says which of its rows are certain, and only the uncertain queries go
to the next one; the last knows every distance from its differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.evaluation.neighbours._candidates import CandidateSearch

SPARE = 16
"""Candidates beyond the k that are asked for."""
LARGE_K = 64
"""From this k on, ranking by the differences of a whole shortlist costs more than it settles."""


@dataclass(frozen=True)
class Reranked:
    """Indices [B, k], distances [B, k] in float64, and which rows are certain [B]."""

    indices: Tensor
    distances: Tensor
    certain: Tensor


Reranker = Callable[[Tensor, Tensor | None], Reranked]
"""(queries [B, Z], excluded index [B] or None) -> their k nearest."""


def rerank(
    queries: Float[Tensor, "Q Z"],
    exclude: Int[Tensor, " Q"] | None,
    k: int,
    row_bytes: int,
    rerankers: Iterable[Callable[[], Reranker]],
) -> tuple[Int[Tensor, "Q k"], Float[Tensor, "Q k"]]:
    """Indices [Q, k] and float64 distances [Q, k]; the last reranker is certain of every row."""
    indices = torch.empty(queries.shape[0], k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(indices.shape, dtype=torch.float64, device=queries.device)
    rows = torch.arange(queries.shape[0], device=queries.device)
    for build in rerankers:
        if rows.numel() == 0:
            break
        nearest, uncertain = build(), []
        for block in row_blocks(rows, row_bytes):
            result = nearest(queries[block], None if exclude is None else exclude[block])
            indices[block], distances[block] = result.indices, result.distances
            uncertain.append(block[~result.certain])
        rows = torch.cat(uncertain)
    return indices, distances


def row_blocks(rows: Int[Tensor, " N"], row_bytes: int) -> Iterator[Tensor]:
    """Split ``rows`` into blocks that fit the caches of the device, at most 256 MiB of work."""
    cache, most = 2**28 if rows.is_cuda else 2**24, 2**28
    size = max(cache // row_bytes, min(64, most // row_bytes), 1)
    return iter(torch.split(rows, size))


def shortlist_reranker(gallery: Float[Tensor, "G Z"], k: int, search: CandidateSearch) -> Reranker:
    """Rank a shortlist by its differences; certain when nothing outside of it can be as near."""

    def nearest(queries: Tensor, exclude: Tensor | None) -> Reranked:
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

    return nearest


def gap_reranker(gallery: Float[Tensor, "G Z"], k: int, search: CandidateSearch) -> Reranker:
    """Rank as the candidates come; certain where the gaps exceed twice the rounding error.

    The distances are as exact as the gallery's type: at most 1e-10 of their value for float64.
    """
    tolerance = max(torch.finfo(gallery.dtype).eps, 1e-10)

    def nearest(queries: Tensor, exclude: Tensor | None) -> Reranked:
        m = min(k + 1, gallery.shape[0] - (exclude is not None))
        short = search(queries, m, exclude)
        apart = (short.squared.diff(dim=1) > 2 * short.error_bound[:, None]).all(1)
        certain = apart & (tolerance * short.squared[:, 0] > short.error_bound)
        return Reranked(short.indices[:, :k], short.squared[:, :k].clamp(min=0).sqrt(), certain)

    return nearest


def exact_reranker(gallery: Float[Tensor, "G Z"], k: int) -> Reranker:
    """Rank the whole gallery by its differences; certain always."""

    def nearest(queries: Tensor, exclude: Tensor | None) -> Reranked:
        exact = _from_differences(queries, gallery)
        if exclude is not None:
            exact.scatter_(1, exclude[:, None], torch.inf)
        positions, distances = _rank(exact, k)
        return Reranked(positions, distances, torch.ones_like(positions[:, 0], dtype=torch.bool))

    return nearest


def chunked(reranker: Reranker, rows: int) -> Reranker:
    """The same for ``rows`` queries at a time, for one that needs more memory than others."""

    def nearest(queries: Tensor, exclude: Tensor | None) -> Reranked:
        chunks = [slice(i, i + rows) for i in range(0, len(queries), rows)]
        results = [reranker(queries[c], None if exclude is None else exclude[c]) for c in chunks]
        columns = ((r.indices, r.distances, r.certain) for r in results)
        return Reranked(*map(torch.cat, zip(*columns, strict=True)))

    return nearest


def _from_differences(queries: Tensor, gallery: Tensor) -> Tensor:
    """Euclidean distances in float64, free of cancellation."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries.double(), gallery.double(), compute_mode=mode)


def _rank(distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row, ascending; equal distances keep the order of the columns."""
    ordered, positions = distances.sort(dim=1, stable=True)
    return positions[:, :k], ordered[:, :k]
