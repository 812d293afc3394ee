"""Items with their tags: what the neighbours of a query have, and how much speaks for each tag.

With d_1 <= ... <= d_K the distances of the K nearest items of a query and t half of the median of
d_K - d_1 over items,

    w_j   proportional to c_j exp(-(d_j - d_1) / t),    sum_j w_j = 1
    share of tag l = sum_j w_j [item j has l]

with c_j = 1, but for items that are as far as the K-th: where m of them tie for the last r of the K
places, each counts c_j = r / m, the mean over all orders in which they could stand. So no answer
depends on the order of the items.

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
TIED = 1e-6
"""Relative difference of distances that is none: of vectors in float32 it is rounding."""
DECIMALS = 12
"""Decimals of a share: sums in another order differ by less, and tags of one share tie."""
Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Near:
    """Nearest items of Q queries, with all that tie for the last place.

    Parameters
    ----------
    query, row : [V]
        Number of the query, and row of the item, of each neighbour; queries in order.
    distance : [V]
        Distance of the two.
    places : [V]
        Places among the K nearest that the neighbour takes: 1, or a share of those that are tied.
    first, last : [Q]
        Distance of the nearest item, and of the K-th.
    """

    query: Rows
    row: Rows
    distance: Array
    places: Array
    first: Array
    last: Array


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
        near = cls(x, starts, codes, 1.0, spherical, sets.names).others()
        width = NARROW * float(np.median(near.last - near.first))
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

    def near(self, queries: Float[Tensor, "Q D"]) -> Near:
        """Return the nearest items of queries."""
        return self._near(queries, None)

    def others(self) -> Near:
        """Return the neighbours of each item among the others."""
        return self._near(self.vectors, np.arange(len(self)))

    def _near(self, queries: Float[Tensor, "Q D"], own: Rows | None) -> Near:
        """Search more and more items of the queries whose last neighbour ties with the next."""
        none, left = (np.zeros(0, np.int64), np.zeros(0)), np.arange(len(queries))
        found = [(none[0], none[0], none[1], none[1])]
        first, last = np.zeros((2, len(queries)))
        most = len(self) - (own is not None)
        width = min(NEIGHBOURS + 1, most)
        while len(left):
            tied = list[Rows]()
            for part in blocks(len(left), 32 * width, LARGE_BYTES):
                asked = left[part]
                rows, distance = self._nearest(
                    queries[asked], width, None if own is None else asked
                )
                last[asked], first[asked] = distance[:, NEIGHBOURS - 1], distance[:, 0]
                end = last[asked] * (1 + TIED)
                whole = (distance[:, -1] > end) | (width == most)
                tied.append(asked[~whole])
                found.append(_placed(asked[whole], rows[whole], distance[whole]))
            left, width = np.concatenate(tied), min(2 * width, most)
        columns = zip(*found, strict=True)
        query, row, distance, places = (np.concatenate(each) for each in columns)
        order = np.argsort(query, kind="stable")
        return Near(query[order], row[order], distance[order], places[order], first, last)

    def _nearest(
        self, queries: Float[Tensor, "Q D"], k: int, own: Rows | None
    ) -> tuple[Rows, Array]:
        """Return the rows and distances [Q, k] of the nearest items, without a query's own row."""
        rows = self._engine.search(queries, k + (own is not None))
        distance = torch.empty(rows.shape, dtype=torch.float64)
        for part in blocks(len(queries), 16 * rows.shape[1] * self.vectors.shape[1], LARGE_BYTES):
            gaps = self.vectors[rows[part]].double() - queries[part, None].double()
            distance[part] = gaps.norm(dim=2)
        found, far = rows.numpy(), distance.numpy()
        if own is not None:
            itself = found == own[:, None]
            itself[~itself.any(1), -1] = True  # float32 rounds: not always its own nearest
            found, far = (each[~itself].reshape(len(own), k) for each in (found, far))
        order = np.argsort(far, axis=1, kind="stable")
        return np.take_along_axis(found, order, 1), np.take_along_axis(far, order, 1)

    def hits(self, near: Near) -> TagHits:
        """Return the candidates of queries from their nearest items."""
        n = len(near.first)
        weight = np.exp(-(near.distance - near.first[near.query]) / self.width) * near.places
        weight /= np.bincount(near.query, weight, n)[near.query]
        votes = csr_array((weight, (near.query, near.row)), (n, len(self)))
        found = csr_array(votes @ self.tags.has)
        tag, share = np.full((n, CANDIDATES), -1), np.full((n, CANDIDATES), -np.inf)
        ends = zip(found.indptr[:-1], found.indptr[1:], strict=True)
        for place, (start, end) in enumerate(ends):
            codes, shares = found.indices[start:end], found.data[start:end].round(DECIMALS)
            best = np.lexsort((codes, -shares))[:CANDIDATES]  # equal ones as their names
            tag[place, : len(best)], share[place, : len(best)] = codes[best], shares[best]
        carriers = np.where(tag < 0, 0.0, self._carriers[tag])
        return TagHits(tag, share, {"distance": near.first, "carriers": carriers})


def _placed(query: Rows, rows: Rows, distance: Array) -> tuple[Rows, Rows, Array, Array]:
    """Return query, row, distance and places of neighbours, from sorted ones [Q, k] with all ties.

    Those that are as far as the K-th share the places that nearer ones leave.
    """
    last = distance[:, NEIGHBOURS - 1, None]
    nearer, tied = distance < last * (1 - TIED), np.abs(distance - last) <= last * TIED
    left = NEIGHBOURS - nearer.sum(1, keepdims=True)
    places = np.where(nearer, 1.0, np.where(tied, left / tied.sum(1, keepdims=True), 0.0))
    counts = places > 0
    number = np.broadcast_to(query[:, None], rows.shape)[counts]
    return number, rows[counts], distance[counts], places[counts]


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
