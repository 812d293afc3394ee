"""Shortlists of near gallery items: fast, with a bound on their rounding error."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import InputError

BLOCK_BYTES = 2**23
"""Of the gallery, read at once by ``block_proposer``."""
WORK_BYTES = 2**26
"""Of its distances to all queries."""


@dataclass(frozen=True)
class Shortlist:
    """Candidates of B queries: the rest of the gallery is at least ``squared.max() - slack`` away.

    ``indices`` [B, M]; ``squared`` [B, M] approximate squared distances, ascending, float64;
    ``slack`` [B] bound of their rounding error; ``complete`` is true when there is no rest.
    """

    indices: Tensor
    squared: Tensor
    slack: Tensor
    complete: bool


Proposer = Callable[[Tensor, int, Tensor | None], Shortlist]
"""(queries [B, Z], M, excluded index [B] or None) -> shortlist."""


class MatrixDistances:
    """Squared distances less ``|q|^2`` from one matrix product, about the gallery's centre.

    ``|q - g|^2 - |q|^2 = [q, 1] . [-2 g, |g|^2]``
    """

    def __init__(self, gallery: Tensor, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.centre = gallery.to(dtype).mean(0)
        points = gallery.to(dtype) - self.centre
        self.rows = torch.cat([-2 * points, points.square().sum(1, True)], 1)
        self.reach = points.square().sum(1).max().double().sqrt()

    def centred(self, queries: Tensor) -> Tensor:
        """Queries [B, Z] about the centre of the gallery, in the working precision."""
        return queries.to(self.dtype) - self.centre

    def __call__(self, centred: Tensor, exclude: Tensor | None) -> Tensor:
        """[B, G], infinite at the excluded index of each row."""
        partial = torch.cat([centred, torch.ones_like(centred[:, :1])], 1) @ self.rows.T
        if exclude is not None:
            partial.scatter_(1, exclude[:, None], torch.inf)
        return partial


def rounding_slack(centred: Tensor, reach: Tensor) -> Tensor:
    """Bound [B] of the rounding error of squared distances computed by a matrix product.

    ``8 (sqrt(Z) + 4) eps (|q| + max |g|)^2``: the error of a dot product of length Z grows as
    sqrt(Z) eps (Higham & Mary 2019, SIAM J. Sci. Comput. 41(5)), with room for its constant.
    """
    norms = centred.double().square().sum(1).sqrt()
    growth = 8 * (math.sqrt(centred.shape[1]) + 4) * torch.finfo(centred.dtype).eps
    return growth * (norms + reach).square()


def matrix_proposer(gallery: Tensor, dtype: torch.dtype) -> Proposer:
    """Shortlists by matrix products in ``dtype``."""
    distances = MatrixDistances(gallery, dtype)

    def propose(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = distances.centred(queries)
        partial, indices = distances(centred, exclude).topk(m, dim=1, largest=False)
        squared = partial.double() + centred.double().square().sum(1, True)
        available = gallery.shape[0] - (exclude is not None)
        return Shortlist(indices, squared, rounding_slack(centred, distances.reach), m == available)

    return propose


def block_proposer(gallery: Tensor, dtype: torch.dtype) -> Proposer:
    """The same without a copy of the gallery: its blocks are read, multiplied and let go.

    Memory O(B m) and a block of ``BLOCK_BYTES``, so that the gallery may be a memory map.
    """
    centre = _mean(gallery)
    step = max(1, BLOCK_BYTES // (gallery.shape[1] * gallery.element_size()))

    def propose(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries.to(dtype) - centre.to(dtype)
        best, found = centred.new_empty(len(queries), 0), centred.new_empty(0).long()
        found, reach = found.expand(len(queries), 0), centred.new_zeros(())
        wide = min(step, max(256, WORK_BYTES // (centred.element_size() * len(queries))))
        for start in range(0, len(gallery), wide):
            points = gallery[start : start + wide].to(dtype) - centre.to(dtype)
            lengths = points.square().sum(1)
            partial = torch.addmm(lengths, centred, points.T, alpha=-2)
            _leave_out(partial, exclude, start)
            best, found = _smallest(best, found, partial, start, m)
            reach = reach.maximum(lengths.max())
        squared = best.double() + centred.double().square().sum(1, True)
        available = len(gallery) - (exclude is not None)
        slack = rounding_slack(centred, reach.double().sqrt())
        return Shortlist(found, squared, slack, m == available)

    return propose


def _mean(gallery: Tensor) -> Tensor:
    """Of some thousand rows: a centre near the middle is all that rounding asks for."""
    stride = max(1, len(gallery) // 4096)
    return gallery[::stride].double().mean(0)


def _leave_out(partial: Tensor, exclude: Tensor | None, start: int) -> None:
    if exclude is not None:
        rows = ((exclude >= start) & (exclude < start + partial.shape[1])).nonzero().flatten()
        partial[rows, exclude[rows] - start] = torch.inf


def _smallest(
    best: Tensor, found: Tensor, partial: Tensor, start: int, m: int
) -> tuple[Tensor, Tensor]:
    """The m smallest of those so far and of a block that begins at ``start``, ascending."""
    values, places = partial.topk(min(m, partial.shape[1]), dim=1, largest=False)
    pool, names = torch.cat([best, values], 1), torch.cat([found, places + start], 1)
    kept, order = pool.topk(min(m, pool.shape[1]), dim=1, largest=False)
    return kept, names.gather(1, order)


def faiss_proposer(gallery: Tensor) -> Proposer:
    """Shortlists by ``faiss.IndexFlatL2`` about the gallery's centre.

    One more is asked for where one is excluded: the ranking drops it when it shows up.
    """
    import faiss

    centre = gallery.mean(0)
    points = gallery - centre
    reach = points.square().sum(1).max().double().sqrt()
    index = faiss.IndexFlatL2(gallery.shape[1])
    index.add(points.contiguous().numpy())

    def propose(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries - centre
        wanted = m + (exclude is not None)
        squared, found = map(torch.from_numpy, index.search(centred.contiguous().numpy(), wanted))
        slack = rounding_slack(centred, reach)
        complete = wanted == gallery.shape[0] and bool((found >= 0).all())
        return Shortlist(found.clamp(min=0), squared.double(), slack, complete)

    return propose


def faiss_fits(points: Tensor) -> bool:
    """FAISS is installed and the points are what it holds: float32 in main memory."""
    in_reach = points.dtype == torch.float32 and points.device.type == "cpu"
    return in_reach and importlib.util.find_spec("faiss") is not None


def require_faiss(points: Tensor) -> None:
    """Raise unless FAISS can search these points."""
    if importlib.util.find_spec("faiss") is None:
        raise InputError("backend='faiss' but faiss is not installed. Run: pip install faiss-cpu")
    if not faiss_fits(points):
        raise InputError(
            f"backend='faiss' holds float32 on the CPU, the queries are {points.dtype} on "
            f"{points.device}. Convert them, or use backend='torch'."
        )
