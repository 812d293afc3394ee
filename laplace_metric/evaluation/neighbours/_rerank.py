"""Exact nearest neighbours in stages, each more exact and slower than the one before.

A matrix product gives squared distances fast, but ``|q|^2 + |g|^2 - 2 q.g`` loses the small ones
to cancellation. So a stage answers its queries together with which answers are certain, and only
the uncertain ones go to the next stage; the last knows every distance from its differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.evaluation.neighbours._candidates import Proposer

SPARE = 16
"""Candidates proposed beyond the k that are asked for."""
DEEP = 64
"""From this k on, ranking by the differences of a whole shortlist costs more than it settles."""


@dataclass(frozen=True)
class Answer:
    """Indices [B, k], distances [B, k] in float64, and which rows are certain [B]."""

    indices: Tensor
    distances: Tensor
    certain: Tensor


Stage = Callable[[Tensor, Tensor | None], Answer]
"""(queries [B, Z], excluded index [B] or None) -> answer."""


def run_stages(
    queries: Tensor,
    exclude: Tensor | None,
    k: int,
    row_bytes: int,
    stages: Iterable[Callable[[], Stage]],
) -> tuple[Tensor, Tensor]:
    """Indices [Q, k] and float64 distances [Q, k]; the last stage is certain of every row."""
    indices = torch.empty(queries.shape[0], k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(indices.shape, dtype=torch.float64, device=queries.device)
    rows = torch.arange(queries.shape[0], device=queries.device)
    for build in stages:
        if rows.numel() == 0:
            break
        stage, uncertain = build(), []
        for block in row_blocks(rows, row_bytes):
            answer = stage(queries[block], None if exclude is None else exclude[block])
            indices[block], distances[block] = answer.indices, answer.distances
            uncertain.append(block[~answer.certain])
        rows = torch.cat(uncertain)
    return indices, distances


def row_blocks(rows: Tensor, row_bytes: int) -> Iterator[Tensor]:
    """Split ``rows`` into blocks that fit the caches of the device, at most 256 MiB of work."""
    roomy, most = (2**28, 2**28) if rows.is_cuda else (2**24, 2**28)
    size = max(roomy // row_bytes, min(64, most // row_bytes), 1)
    return iter(torch.split(rows, size))


def shortlist_stage(gallery: Tensor, k: int, propose: Proposer) -> Stage:
    """Rank a shortlist by its differences; certain when nothing outside of it can be as near."""

    def stage(queries: Tensor, exclude: Tensor | None) -> Answer:
        m = min(k + SPARE, gallery.shape[0] - (exclude is not None))
        short = propose(queries, m, exclude)
        candidates, order = short.indices.sort(dim=1)
        exact = _from_differences(queries[:, None], gallery[candidates]).squeeze(1)
        error = (exact.square() - short.squared.gather(1, order)).abs().amax(1)
        if exclude is not None:
            exact = exact.masked_fill(candidates == exclude[:, None], torch.inf)
        positions, distances = _rank(exact, k)
        beyond = short.squared.amax(1) - torch.maximum(short.slack, 4 * error)
        settled = (beyond > distances[:, -1].square()) | short.complete
        certain = settled & short.squared.isfinite().all(1)
        return Answer(candidates.gather(1, positions), distances, certain)

    return stage


def deep_stage(gallery: Tensor, k: int, propose: Proposer) -> Stage:
    """Rank as proposed; certain where the gaps exceed twice the rounding error.

    The distances are as exact as the gallery's type: at most 1e-10 of their value for float64.
    """
    tolerance = max(torch.finfo(gallery.dtype).eps, 1e-10)

    def stage(queries: Tensor, exclude: Tensor | None) -> Answer:
        m = min(k + 1, gallery.shape[0] - (exclude is not None))
        short = propose(queries, m, exclude)
        apart = (short.squared.diff(dim=1) > 2 * short.slack[:, None]).all(1)
        certain = apart & (tolerance * short.squared[:, 0] > short.slack)
        return Answer(short.indices[:, :k], short.squared[:, :k].clamp(min=0).sqrt(), certain)

    return stage


def exact_stage(gallery: Tensor, k: int) -> Stage:
    """Rank the whole gallery by its differences; certain always."""

    def stage(queries: Tensor, exclude: Tensor | None) -> Answer:
        exact = _from_differences(queries, gallery)
        if exclude is not None:
            exact.scatter_(1, exclude[:, None], torch.inf)
        positions, distances = _rank(exact, k)
        return Answer(positions, distances, torch.ones_like(positions[:, 0], dtype=torch.bool))

    return stage


def in_parts(stage: Stage, rows: int) -> Stage:
    """The same for ``rows`` queries at a time, for a stage that needs more memory than others."""

    def parts(queries: Tensor, exclude: Tensor | None) -> Answer:
        cuts = range(0, len(queries), rows)
        left_out = [None if exclude is None else exclude[i : i + rows] for i in cuts]
        found = [stage(queries[i : i + rows], e) for i, e in zip(cuts, left_out, strict=True)]
        columns = (
            [getattr(a, name) for a in found] for name in ("indices", "distances", "certain")
        )
        return Answer(*(torch.cat(column) for column in columns))

    return parts


def _from_differences(queries: Tensor, gallery: Tensor) -> Tensor:
    """Euclidean distances in float64, free of cancellation."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries.double(), gallery.double(), compute_mode=mode)


def _rank(distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row, ascending; equal distances keep the order of the columns."""
    ordered, positions = distances.sort(dim=1, stable=True)
    return positions[:, :k], ordered[:, :k]
