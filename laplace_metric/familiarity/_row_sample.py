"""A sample of the fit set that the order of its rows cannot change.

With w a fixed vector of random numbers of unit variance and c_i the class of row u_i,

    p_i = w . u_i                                         equal for equal rows alone (almost surely)
    k_i = frac(2^16 (p_i + s_i) + phi c_i)                phi = (sqrt 5 - 1) / 2, s_i = log |h_i|

The sample holds the distinct (row, class, length) triples with the smallest k, each with its number
of copies. What belongs to the final sample belongs to it from its first copy on, so that one pass
counts exactly (k minimum values: Bar-Yossef et al. 2002).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.models._fingerprints import projection_weights

SPREAD = 2.0**16
"""Factor of p in the key: rows closer than its inverse may enter or miss the sample together."""
GOLDEN = 0.6180339887498949
"""phi: rows that differ in their class alone get keys far apart."""
SAME_KEY, SAME_ROW = 1e-9, 1e-12
"""Differences of k and of p that are rounding, of numbers about 2^20 and 2^4."""


@dataclass(frozen=True)
class RowSample:
    """Sample of at most S distinct rows of a stream; its memory is taken once and filled in place.

    Parameters
    ----------
    weights : Tensor [D] float64
        Fixed random numbers w, by which rows are ordered.
    keys : Tensor [S + 1] float64
        Key k of each row that is held; infinite where no row is held. The last place is a dump:
        rows that are not held are written there.
    u, lengths, labels, counts : Tensor [S + 1, D], [S + 1], [S + 1], [S + 1]
        Directions of the rows, their log lengths s, their classes, and the number of times that
        each was read.
    """

    weights: Tensor
    keys: Tensor
    u: Tensor
    lengths: Tensor
    labels: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, size: int, like: Float[Tensor, "n D"]) -> RowSample:
        """Return a sample without rows, of the width, type and device of ``like``."""
        places, width = size + 1, like.shape[1]
        whole = torch.zeros(places, dtype=torch.int64, device=like.device)
        keys = like.new_full((places,), torch.inf)
        weights = row_weights(width).to(like)
        rows, lengths = like.new_zeros(places, width), like.new_zeros(places)
        return cls(weights, keys, rows, lengths, whole, whole.clone())

    def add_(
        self,
        u: Float[Tensor, "n D"],
        lengths: Float[Tensor, " n"],
        labels: Int[Tensor, " n"],
        counted: Bool[Tensor, " n"],
    ) -> None:
        """Read the rows that are ``counted``, each with its log length and its class.

        The size of no array depends on a value, so that a device need not be waited for.
        """
        # k = frac(2^16 (p + s) + phi c) [n], infinite for rows that do not count: they sort last
        size = len(self.keys) - 1
        x = SPREAD * (u @ self.weights + lengths) + GOLDEN * labels
        keys = (x - x.floor()).masked_fill(~counted, torch.inf)
        # held and new rows compete in one order; equal rows have one key and stand side by side
        pool, order = torch.cat([self.keys[:-1], keys]).sort()
        starts = torch.ones_like(pool, dtype=torch.bool)
        starts[1:] = pool.diff() > SAME_KEY  # infinity - infinity is NaN, which is not larger
        group = starts.cumsum(0) - 1  # [S + n], the rank of each distinct key
        # every member of a group gets the count of all, whichever of them is going to be held
        copies = torch.cat([self.counts[:-1], counted.to(self.counts)])
        total = torch.zeros_like(copies).index_add_(0, group, copies[order])
        copies.index_copy_(0, order, total[group])
        # the first member of each of the S smallest keys stays: a row that leaves never returns,
        # since the S-th smallest key only falls, so no copy of a row of the final sample is missed
        stays = torch.zeros_like(starts)
        stays.index_copy_(0, order, starts & (group < size) & pool.isfinite())
        held, enters = stays[:size], stays[size:]
        # at most S stay, so there is a free place for each row that enters; the others are written
        # to the last place, one over the other, and never read
        free = held.int().argsort()  # the places that are given up, first
        place = torch.where(enters, free[(enters.cumsum(0) - 1).clamp_min(0)], size)
        # places that are given up hold nothing until a new row is written there
        self.keys[:-1].masked_fill_(~held, torch.inf)
        self.counts[:-1].copy_(torch.where(held, copies[:size], 0))
        for column, new in (
            (self.keys, keys), (self.u, u), (self.lengths, lengths), (self.labels, labels),
            (self.counts, copies[size:]),
        ):  # fmt: skip
            column.index_copy_(0, place, new)

    def rows(self) -> SampledRows:
        """Return n <= S rows, repeated as often as they were read.

        If there are more than S copies, they are thinned out evenly (systematic sampling).
        """
        order = self.keys[:-1].argsort()
        ends = self.counts[order].cumsum(0)
        total = int(ends[-1])
        n = min(len(order), total)
        # n places, evenly spaced over the copies laid end to end in the order of the keys: a row is
        # taken as often as places fall on its copies, which needs no draw
        middles = (torch.arange(n, device=order.device).double() + 0.5) * (total / max(1, n))
        place = torch.searchsorted(ends.double(), middles)
        equal = equal_directions(self.u[order])
        pair = equal * (self.labels.max() + 1) + self.labels[order]
        kinds, kind = pair.unique(return_inverse=True)
        copies = torch.zeros_like(kinds).index_add_(0, kind, self.counts[order])[kind]
        index = order[place]
        columns = self.u[index], self.lengths[index], self.labels[index]
        return SampledRows(*columns, equal[place], copies[place])


class SampledRows(NamedTuple):
    """Rows of a sample.

    Parameters
    ----------
    u : Tensor [n, D] float64
        Directions of the rows.
    lengths : Tensor [n]
        Log lengths of the rows.
    labels : Tensor [n]
        Number of each row's class.
    equal : Tensor [n]
        Number of each row's direction: the same for equal directions, whatever their class.
    copies : Tensor [n]
        Number of rows of the stream that have this row's direction and class.
    """

    u: Tensor
    lengths: Tensor
    labels: Tensor
    equal: Tensor
    copies: Tensor


@lru_cache(maxsize=8)
def row_weights(width: int) -> Float[Tensor, " D"]:
    """Return w, with 48 bits: 16 would give the same p to many rows of zeros and ones.

    Examples
    --------
    >>> len({float(w) for w in row_weights(10_000)})
    10000
    """
    coarse, middle, fine = projection_weights(width)[:3]
    return coarse + middle / 2**16 + fine / 2**32


def equal_directions(u: Float[Tensor, "n D"]) -> Int[Tensor, " n"]:
    """Return the number of each row's direction, by its p: the same for equal rows.

    Examples
    --------
    >>> rows = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).double()
    >>> equal_directions(rows).bincount().sort().values.tolist()
    [1, 2]
    """
    values, order = (u @ row_weights(u.shape[1]).to(u)).sort()
    starts = torch.zeros_like(order)
    starts[1:] = values.diff() > SAME_ROW
    return torch.empty_like(order).index_copy_(0, order, starts.cumsum(0))
