"""Shortlists of the gallery for a query, fast, with a bound on their rounding error.

    |q - g|^2 - |q|^2 = [q, 1] . [-2 g, |g|^2]      one matrix product, q and g about the centre
    error <= 8 (sqrt(Z) + 4) eps (|q| + max |g|)^2

The error of a dot product of length Z grows as sqrt(Z) eps (Higham & Mary 2019, SIAM J. Sci.
Comput. 41(5)); the bound leaves room for its constant.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, block_rows, blocks
from laplace_metric.errors import MissingPackageError

GALLERY_BYTES = 2**23
"""Memory of the part of the gallery that ``block_candidates`` reads at once."""
LEAST_GALLERY_ROWS = 256
"""Items of that part, even if their distances to all queries are more than ``LARGE_BYTES``."""


class Shortlist(NamedTuple):
    """M candidates of B queries: no other item is nearer than ``squared.max() - error_bound``.

    Attributes
    ----------
    indices : Tensor [B, M]
        Rows of the gallery.
    squared : Tensor [B, M]
        Approximate squared distances, ascending, float64.
    error_bound : Tensor [B]
        Bound on the rounding error of these squared distances.
    complete : bool
        True if the candidates are all items of the gallery.
    """

    indices: Tensor
    squared: Tensor
    error_bound: Tensor
    complete: bool


CandidateSearch = Callable[[Tensor, int, Tensor | None], Shortlist]
"""Function of queries [B, Z], M and excluded rows [B] (or None) that returns a shortlist."""


def rounding_error_bound(
    centred: Float[Tensor, "B Z"], reach: Float[Tensor, ""]
) -> Float[Tensor, " B"]:
    """Bound the rounding error [B] of squared distances by a product; ``reach`` is max |g|."""
    norms = centred.double().square().sum(1).sqrt()
    growth = 8 * (math.sqrt(centred.shape[1]) + 4) * torch.finfo(centred.dtype).eps
    return growth * (norms + reach).square()


def block_candidates(gallery: Float[Tensor, "G Z"], dtype: torch.dtype) -> CandidateSearch:
    """Return a search by matrix products in ``dtype``, block by block of the gallery.

    Memory O(B m) and a block of ``GALLERY_BYTES``: the gallery is not copied, and may be a memory
    map.
    """
    centre = _mean(gallery)
    most = block_rows(gallery.shape[1] * gallery.element_size(), GALLERY_BYTES)

    def search(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries.to(dtype) - centre.to(dtype)
        best, reach = centred.new_empty(len(queries), 0), centred.new_zeros(())
        indices = best.long()
        distance_bytes = centred.element_size() * len(queries)
        wide = min(most, block_rows(distance_bytes, LARGE_BYTES, LEAST_GALLERY_ROWS))
        for start in range(0, len(gallery), wide):
            points = gallery[start : start + wide].to(dtype) - centre.to(dtype)
            lengths = points.square().sum(1)
            partial = torch.addmm(lengths, centred, points.T, alpha=-2)  # [B, block]
            _leave_out(partial, exclude, start)
            best, indices = _smallest(best, indices, partial, start, m)
            reach = reach.maximum(lengths.max())
            del partial, points  # before those of the next block are made
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
    """Return the m smallest of those so far and of a block that begins at ``start``, ascending."""
    values, columns = partial.topk(min(m, partial.shape[1]), dim=1, largest=False)
    pool, rows = torch.cat([best, values], 1), torch.cat([indices, columns + start], 1)
    smallest, order = pool.topk(min(m, pool.shape[1]), dim=1, largest=False)
    return smallest, rows.gather(1, order)


def faiss_candidates(gallery: Float[Tensor, "G Z"]) -> CandidateSearch:
    """Return a search by ``faiss.knn``, about the centre of the gallery, of which it holds a copy.

    If a row is excluded, one candidate more is searched, and the ranking drops that row.
    """
    faiss = require_faiss()
    centre = gallery.mean(0)
    points = (gallery - centre).contiguous()  # an index would copy them again
    parts = blocks(len(points), points[:1].nbytes)
    reach = torch.stack([points[part].square().sum(1).max() for part in parts]).max()
    reach, stored = reach.double().sqrt(), points.numpy()

    def search(queries: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries - centre
        depth = m + (exclude is not None)
        found = faiss.knn(centred.contiguous().numpy(), stored, depth)
        squared, indices = map(torch.from_numpy, found)
        complete = depth == gallery.shape[0] and bool((indices >= 0).all())
        error_bound = rounding_error_bound(centred, reach)
        return Shortlist(indices.clamp(min=0), squared.double(), error_bound, complete)

    return search


def faiss_fits(points: Float[Tensor, "N Z"]) -> bool:
    """Return True if FAISS is installed and can hold the points: float32 in main memory."""
    in_reach = points.dtype == torch.float32 and points.device.type == "cpu"
    return in_reach and importlib.util.find_spec("faiss") is not None


def require_faiss() -> Any:
    """Import FAISS; raise ``MissingPackageError`` if it is not installed."""
    if importlib.util.find_spec("faiss") is None:
        needed = "this engine (Flat(), the default, works without)"
        raise MissingPackageError("faiss", needed, "pip install faiss-cpu")
    import faiss

    return faiss
