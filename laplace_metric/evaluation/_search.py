"""Exact nearest neighbours from a fast, slightly inexact shortlist.

A matrix product gives squared distances fast, but ``|q|^2 + |g|^2 - 2 q.g`` loses the small ones
to cancellation. So it only proposes a shortlist; the shortlist is ranked by distances of
differences in float64, and accepted when nothing outside of it can be as near. The rows that
fail the test go to the next, more exact stage, and in the end to the full exact distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SPARE = 16
"""Candidates proposed beyond the k that are asked for."""


@dataclass(frozen=True)
class Shortlist:
    """Candidates of B queries: the rest of the gallery is at least ``squared.max() - slack`` away.

    ``indices`` [B, M]; ``squared`` [B, M] approximate squared distances; ``slack`` [B] bound of
    their rounding error; ``complete`` is true when there is no rest.
    """

    indices: Tensor
    squared: Tensor
    slack: Tensor
    complete: bool


Proposer = Callable[[Tensor, int, Tensor | None], Shortlist]
"""(rows [B] of the queries, M, excluded index [B] or None) -> shortlist."""


def row_blocks(rows: Tensor, row_bytes: int) -> Iterator[Tensor]:
    """Split ``rows`` into blocks that fit the caches of the device, at most 256 MiB of work."""
    roomy, most = (2**28, 2**28) if rows.is_cuda else (2**24, 2**28)
    size = max(roomy // row_bytes, min(64, most // row_bytes), 1)
    return iter(torch.split(rows, size))


def rounding_slack(queries: Tensor, gallery: Tensor, dtype: torch.dtype) -> Tensor:
    """Bound [B] of the rounding error of squared distances computed by a matrix product.

    ``8 (sqrt(Z) + 4) eps (|q| + max |g|)^2``: the error of a dot product of length Z grows as
    sqrt(Z) eps (Higham & Mary 2019, SIAM J. Sci. Comput. 41(5)), with room for its constant.
    """
    reach = _norms(queries) + _norms(gallery).max()
    growth = 8 * (queries.shape[1] ** 0.5 + 4) * torch.finfo(dtype).eps
    return growth * reach.square()


def _norms(points: Tensor) -> Tensor:
    return torch.linalg.vector_norm(points, dim=1, dtype=torch.float64)


class MatrixDistances:
    """Squared distances less ``|q|^2`` from one matrix product, about the gallery's centre.

    ``|q - g|^2 - |q|^2 = [q, 1] . [-2 g, |g|^2]``
    """

    def __init__(self, gallery: Tensor, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.centre = gallery.to(dtype).mean(0)
        self.points = gallery.to(dtype) - self.centre
        self.columns = torch.cat([-2 * self.points, self.points.square().sum(1, True)], 1).T

    def centred(self, queries: Tensor) -> Tensor:
        """Queries [B, Z] about the centre of the gallery, in the working precision."""
        return queries.to(self.dtype) - self.centre

    def __call__(self, centred: Tensor, exclude: Tensor | None) -> Tensor:
        """[B, G], infinite at the excluded index of each row."""
        partial = torch.cat([centred, torch.ones_like(centred[:, :1])], 1) @ self.columns
        if exclude is not None:
            partial.scatter_(1, exclude[:, None], torch.inf)
        return partial


def matrix_proposer(queries: Tensor, gallery: Tensor, dtype: torch.dtype) -> Proposer:
    """Shortlists by a blocked matrix product in ``dtype``."""
    distances = MatrixDistances(gallery, dtype)

    def propose(rows: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = distances.centred(queries[rows])
        partial, indices = distances(centred, exclude).topk(m, dim=1, largest=False)
        squared = partial.double() + centred.double().square().sum(1, True)
        slack = rounding_slack(centred, distances.points, dtype)
        available = gallery.shape[0] - (exclude is not None)
        return Shortlist(indices, squared, slack, m == available)

    return propose


def _exact(queries: Tensor, gallery: Tensor) -> Tensor:
    """Euclidean distances in float64 from the differences, free of cancellation."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries.double(), gallery.double(), compute_mode=mode)


def _rank(distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row, ascending; equal distances keep the order of the columns."""
    ordered, positions = distances.sort(dim=1, stable=True)
    return positions[:, :k], ordered[:, :k]


def _rank_shortlist(
    queries: Tensor, gallery: Tensor, short: Shortlist, k: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices [B, k], distances [B, k] and which rows are certain [B]."""
    indices, order = short.indices.sort(dim=1)
    exact = _exact(queries[:, None], gallery[indices]).squeeze(1)
    observed = (exact.square() - short.squared.gather(1, order)).abs().amax(1)
    if exclude is not None:
        exact = exact.masked_fill(indices == exclude[:, None], torch.inf)
    positions, distances = _rank(exact, k)
    beyond = short.squared.amax(1) - torch.maximum(short.slack, 4 * observed)
    certain = (beyond > distances[:, -1].square()) | torch.full_like(beyond, short.complete).bool()
    return indices.gather(1, positions), distances, certain


def exact_search(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    exclude: Tensor | None,
    proposers: Sequence[Callable[[], Proposer]],
) -> tuple[Tensor, Tensor]:
    """Indices [Q, k] and float64 distances [Q, k]; ``proposers`` are tried in turn."""
    indices = torch.empty(queries.shape[0], k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(indices.shape, dtype=torch.float64, device=queries.device)
    rows = torch.arange(queries.shape[0], device=queries.device)
    m = min(k + SPARE, gallery.shape[0] - (exclude is not None))
    row_bytes = 12 * gallery.shape[0] + 8 * (m + 1) * queries.shape[1]
    for build in proposers:
        propose, uncertain = build(), []
        for block in row_blocks(rows, row_bytes):
            excluded = None if exclude is None else exclude[block]
            short = propose(block, m, excluded)
            indices[block], distances[block], certain = _rank_shortlist(
                queries[block], gallery, short, k, excluded
            )
            uncertain.append(block[~certain])
        rows = torch.cat(uncertain)
        if rows.numel() == 0:
            return indices, distances
    for block in row_blocks(rows, 24 * gallery.shape[0]):
        exact = _exact(queries[block], gallery)
        if exclude is not None:
            exact.scatter_(1, exclude[block][:, None], torch.inf)
        indices[block], distances[block] = _rank(exact, k)
    return indices, distances
