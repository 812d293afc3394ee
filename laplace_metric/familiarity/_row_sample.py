"""A sample of the fit set that the order of its rows cannot change, and its folds.

With w a fixed vector of random numbers of unit variance and c_i the class of row u_i,

    p_i = w . u_i                                         equal for equal rows alone (almost surely)
    k_i = frac(2^16 (p_i + s_i) + phi c_i)                phi = (sqrt 5 - 1) / 2, s_i = log |h_i|

The sample holds the distinct (row, class, length) triples with the smallest k, each with its number
of copies. What belongs to the final sample belongs to it from its first copy on, so that one pass
counts exactly (k minimum values: Bar-Yossef et al. 2002). Folds follow the order of p: rounding
exchanges neighbours at most, and equal rows share a fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.models._fingerprints import projection_weights

SEED = 0
"""Seed of the order in which folds are dealt."""
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

    def rows(self) -> tuple[Float[Tensor, "n D"], Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return n <= S rows, repeated as often as they were read, their lengths and classes.

        If there are more than S copies, they are thinned out evenly (systematic sampling).
        """
        order = self.keys[:-1].argsort()
        ends = self.counts[order].cumsum(0)
        total = int(ends[-1])
        n = min(len(order), total)
        # n places, evenly spaced over the copies laid end to end in the order of the keys: a row is
        # taken as often as places fall on its copies, which needs no draw
        middles = (torch.arange(n, device=order.device).double() + 0.5) * (total / max(1, n))
        index = order[torch.searchsorted(ends.double(), middles)]
        return self.u[index], self.lengths[index], self.labels[index]


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


def fold_of(u: Float[Tensor, "n D"], n_folds: int) -> Int[Tensor, " n"]:
    """Return the fold of each row: a fixed random order of folds, dealt along the order of p.

    Equal rows share the fold of the first of them. Folds of distinct rows are equally large.

    Examples
    --------
    >>> u = torch.nn.functional.normalize(torch.arange(12.0).reshape(6, 2).double() - 4)
    >>> bool((fold_of(u.flip(0), 3) == fold_of(u, 3).flip(0)).all())
    True
    """
    # fold of the j-th smallest p: the j-th of a fixed shuffle; a row equal to earlier ones (up to
    # rounding) takes the place of the first of them
    values, order = (u @ row_weights(u.shape[1]).to(u)).sort()
    dealt = torch.randperm(len(u), generator=torch.Generator().manual_seed(SEED)) % n_folds
    first = torch.searchsorted(values, values - SAME_ROW)
    return torch.empty_like(order).index_copy_(0, order, dealt.to(order)[first])
