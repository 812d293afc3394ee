"""Items with their tags: what the neighbours of a query have, and how much speaks for each tag.

With d_1 <= ... <= d_K the distances of the K nearest items of a query and t half of the median of
d_K - d_1 over items,

    w_j   proportional to exp(-(d_j - d_1) / t),    sum_j w_j = 1
    share of tag l = sum_j w_j [item j has l]

The M tags with the largest shares are a list of scored hits, as of any search: ``calibrate_scores``
turns them into probabilities. Evidence beside the share are d_1, and the logarithm of the number of
items that have the tag. Of equal items one is kept, with the tags of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, blocks
from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.inputs import read_vectors
from laplace_metric.inputs._columns import Column
from laplace_metric.io import POSITIVE, UNIT, saved, unsaved
from laplace_metric.search._equal_vectors import equal_vectors, first_rows
from laplace_metric.search.engines._engine import Flat, FlatEngine
from laplace_metric.tags._tag_sets import TagSets

NEIGHBOURS, CANDIDATES = 20, 20
"""Nearest items that vote (K), and tags of a query that are candidates (M)."""
NARROW = 0.5
"""Width t of the weights, in units of the median of d_K - d_1."""
Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TagHits:
    """Candidates of Q queries.

    Parameters
    ----------
    tag : [Q, M]
        Number of each tag; -1 where there are fewer.
    share : [Q, M]
        Share of the neighbours that have it, largest first; -inf where there is no candidate.
    evidence : dict of name to [Q] or [Q, M]
        Columns of a calibration, beside the share.
    """

    tag: Rows
    share: Array
    evidence: dict[str, Any]

    def right(self, truth: TagSets) -> npt.NDArray[np.bool_]:
        """Return which candidates [Q, M] their queries have."""
        if not len(self.tag):
            return np.zeros(self.tag.shape, bool)
        query = np.broadcast_to(np.arange(len(self.tag))[:, None], self.tag.shape)
        found = truth.has[query.ravel(), self.tag.clip(0).ravel()]
        return (np.asarray(found).reshape(self.tag.shape) > 0) & (self.tag >= 0)


@dataclass(frozen=True)
class TaggedItems:
    """Distinct vectors, and the tags of each.

    Parameters
    ----------
    vectors : Tensor [N, D]
        Vectors as they are compared: of length 1 where directions are.
    starts, codes : [N + 1], [T]
        Tags of item i: ``codes[starts[i] : starts[i + 1]]``, places among ``names``.
    width : float above 0
        Width t of the weights.
    spherical : bool
        True if directions are compared.
    names : Column [L]
        Tags that occur, sorted.
    """

    vectors: Float[Tensor, "N D"]
    starts: Int[np.ndarray, " S"] = saved(0)
    codes: Int[np.ndarray, " T"] = saved(0)
    width: float = saved(POSITIVE)
    spherical: bool = saved()
    names: Column = unsaved()

    @classmethod
    def of(cls, vectors: Any, tags: Any, *, spherical: bool) -> TaggedItems:
        """Read vectors and tags; see ``TagGuard``.

        Raises
        ------
        InputError
            For shapes and tags that do not fit, and for fewer distinct items than are searched for.
        NonFiniteError
            For NaN and infinity.
        """
        x = read_compared("vectors", vectors, None, spherical=spherical)
        sets = TagSets.of("tags", tags, len(x))
        group = equal_vectors(x)
        kept, sets = first_rows(group), sets.joined(group)
        if len(kept) <= NEIGHBOURS:
            raise InputError(
                f"vectors: {len(kept)} distinct items, and the tags of {NEIGHBOURS} neighbours of "
                "each are counted: pass more items."
            )
        x = x[torch.from_numpy(kept)].detach().contiguous()
        starts, codes = sets.has.indptr.astype(np.int64), sets.has.indices.astype(np.int64)
        distance = cls(x, starts, codes, 1.0, spherical, sets.names).others()[1]
        width = NARROW * float(np.median(distance[:, -1] - distance[:, 0]))
        width = width if width > 0 else 1.0  # all are equally far
        return cls(x, starts, codes, width, spherical, sets.names)

    def check_saved(self) -> None:
        """Raise FileFormatError for tags of a file that do not belong to its items."""
        whole = len(self.starts) == len(self.vectors) + 1 and self.starts[0] == 0
        fits = whole and (np.diff(self.starts) >= 0).all() and self.starts[-1] == len(self.codes)
        if not fits or (len(self.codes) and self.codes.max() >= len(self.names)):
            raise FileFormatError("tag_guard/starts and codes are not the tags of its items")
        if len(self.vectors) <= NEIGHBOURS:
            raise FileFormatError(f"tag_guard/vectors are {len(self.vectors)}, too few")
        lengths = self.vectors.norm(dim=1)
        if self.spherical and not bool(((lengths - 1).abs() <= UNIT - 1).all()):
            raise FileFormatError("tag_guard/vectors are not of length 1")
        owner = np.repeat(np.arange(len(self.vectors)), np.diff(self.starts))
        twice = len(np.unique(owner * len(self.names) + self.codes)) < len(self.codes)
        if twice or not np.array_equal(np.unique(self.names.values), self.names.values):
            raise FileFormatError("tag_guard/codes or names stand twice, or are not sorted")

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def tags(self) -> TagSets:
        """Tags of the items."""
        shape = len(self), len(self.names)
        has = csr_array((np.ones(len(self.codes)), self.codes, self.starts), shape)
        return TagSets(self.names, has, np.diff(self.starts))

    @cached_property
    def _carriers(self) -> Array:
        """Logarithm of the number of items with each tag [L]."""
        return np.log(np.maximum(np.asarray(self.tags.has.sum(0)).ravel(), 1.0))

    @cached_property
    def _engine(self) -> FlatEngine:
        return FlatEngine(self.vectors, Flat())

    def read(self, name: str, values: Any) -> Float[Tensor, "Q D"]:
        """Return queries as they are compared; see ``read_compared``."""
        return read_compared(name, values, self.vectors.shape[1], spherical=self.spherical)

    def near(self, queries: Float[Tensor, "Q D"], k: int = NEIGHBOURS) -> tuple[Rows, Array]:
        """Return the rows [Q, k] of the nearest items, and their distances [Q, k]."""
        rows = self._engine.search(queries, k)
        distance = torch.empty(rows.shape, dtype=torch.float64)
        for part in blocks(len(queries), 16 * k * self.vectors.shape[1], LARGE_BYTES):
            gaps = self.vectors[rows[part]].double() - queries[part, None].double()
            distance[part] = gaps.norm(dim=2)
        return rows.numpy(), distance.numpy()

    def others(self) -> tuple[Rows, Array]:
        """Return the neighbours of each item among the others, and their distances."""
        rows, distance = self.near(self.vectors, NEIGHBOURS + 1)
        own = rows == np.arange(len(rows))[:, None]
        own[~own.any(1), -1] = True  # float32 rounds: an item is not always its own nearest
        shape = len(rows), NEIGHBOURS
        return rows[~own].reshape(shape), distance[~own].reshape(shape)

    def hits(self, rows: Rows, distance: Array) -> TagHits:
        """Return the candidates of queries from their nearest items [Q, K]."""
        n, k = rows.shape
        weight = np.exp(-(distance - distance[:, :1]) / self.width)
        weight /= weight.sum(1, keepdims=True)
        query = np.repeat(np.arange(n), k)
        votes = csr_array((weight.ravel(), (query, rows.ravel())), (n, len(self)))
        found = csr_array(votes @ self.tags.has)
        tag, share = np.full((n, CANDIDATES), -1), np.full((n, CANDIDATES), -np.inf)
        ends = zip(found.indptr[:-1], found.indptr[1:], strict=True)
        for place, (start, end) in enumerate(ends):
            codes, shares = found.indices[start:end], found.data[start:end]
            best = np.lexsort((codes, -shares))[:CANDIDATES]  # equal ones as their names
            tag[place, : len(best)], share[place, : len(best)] = codes[best], shares[best]
        carriers = np.where(tag < 0, 0.0, self._carriers[tag])
        return TagHits(tag, share, {"distance": distance[:, 0], "carriers": carriers})


def read_compared(
    name: str, values: Any, size: int | None, *, spherical: bool
) -> Float[Tensor, "N D"]:
    """Return vectors as they are compared: their directions, or as they are.

    Raises
    ------
    InputError
        For other shapes, and a vector of zeros, which has no direction.
    NonFiniteError
        For NaN and infinity.
    """
    x = read_vectors(name, values, size).detach().cpu()
    largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
    if not spherical:
        if len(x) and float(largest.max()) > torch.finfo(x.dtype).max ** 0.5 / x.shape[1]:
            raise NonFiniteError(
                f"{name} has numbers up to {float(largest.max()):.2g}, whose squares are infinite: "
                "scale them, or pass distance='arccos'."
            )
        return x
    if (zeros := largest.eq(0).flatten()).any():
        raise InputError(
            f"{name} has a vector of zeros in row {int(zeros.nonzero()[0])}, which has no "
            "direction: leave it out, or pass distance='euclidean'."
        )
    x = x / largest  # squares of tiny and of huge numbers are no numbers
    return x / x.norm(dim=1, keepdim=True)
