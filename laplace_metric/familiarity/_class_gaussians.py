"""Gaussians of the fit set, one a class, from a sample that the order of rows cannot change.

With w a fixed vector of random numbers of unit variance and c_i the class of row u_i,

    p_i = w . u_i                                         equal for equal rows alone (almost surely)
    k_i = frac(2^16 (p_i + s_i) + phi c_i)                phi = (sqrt 5 - 1) / 2, s_i = log |h_i|

The sample holds the distinct (row, class, length) triples with the smallest k, each with its number
of copies. What belongs to the final sample belongs to it from its first copy on, so that one pass
counts exactly (k minimum values: Bar-Yossef et al. 2002). Folds follow the order of p: rounding
exchanges neighbours at most, and equal rows share a fold.

One Gaussian of a fit set and one for its classes: sums, covariances, and their cross-fitting.

With u = h / |h| the direction of what enters the head, mu the mean of the fit set's, m_c that of
class c, T their covariance about mu, W their covariance about the m_c (divided by N - C), and the
ridge e = tr W / D, the mean eigenvalue of W:

    far      t(u)   = (u - mu)'  (T + e I)^-1 (u - mu)
    distance d_c(u) = (u - m_c)' (W + e I)^-1 (u - m_c)

Two distances to the nearest point u_i of the sample, of the same form:

    local    l(u)   = min_i (u - u_i)' (W + e I)^-1 (u - u_i)        (T where classes say nothing)
    cosine   k(u)   = min_i |u - u_i|^2                              the limit of e l(u), large e

over the points that are not u itself, so that a point of the sample is compared with the others.

Cross-fitted: five folds of the sample, each scored by the statistics of all other points, which
are the sums without that fold's, and by the points of the other folds. Left out: five groups of
classes, each scored by the statistics and points of the other classes, as new classes will be; the
part of W that members outside the sample have in it stays. Folds, groups and sample do not depend
on the order of the points.

The sums are about centres p_c near the class means, so that little cancels and the product is one
of the features' own type:

    N W = sum_i x_i x_i' - sum_c s_c s_c' / n_c        x_i = u_i - p_c, s_c = sum_{i in c} x_i
    N T = N W + sum_c n_c (m_c - mu) (m_c - mu)'       m_c = p_c + s_c / n_c

(Chan, Golub and LeVeque 1983); p_c is the mean of the first members that are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.curvature.by_class import upper_gram
from laplace_metric.models._reading import Block
from laplace_metric.models._store import projection_weights

SEED = 0
SPREAD = 2.0**16
"""Rows closer than its inverse may enter or miss the sample together."""
GOLDEN = 0.6180339887498949
SAME_KEY, SAME_ROW = 1e-9, 1e-12
"""Differences of k and of p that are rounding, of numbers about 2^20 and 2^4."""


@dataclass(frozen=True)
class RowSample:
    """At most S distinct rows of a stream; the memory is taken once and filled in place.

    Parameters
    ----------
    weights : Tensor [D] float64
        w.
    keys : Tensor [S + 1] float64
        k; infinite where no row is held. The last place takes what is not held.
    u, lengths, labels, counts : Tensor [S + 1, D], [S + 1], [S + 1], [S + 1]
        The rows, s, their classes and how often each was read.
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
        """Read the rows that are ``counted``; no size depends on a value, so no device waits."""
        size = len(self.keys) - 1
        x = SPREAD * (u @ self.weights + lengths) + GOLDEN * labels
        keys = (x - x.floor()).masked_fill(~counted, torch.inf)
        pool, order = torch.cat([self.keys[:-1], keys]).sort()
        starts = torch.ones_like(pool, dtype=torch.bool)
        starts[1:] = pool.diff() > SAME_KEY  # infinity - infinity is NaN, which is not larger
        group = starts.cumsum(0) - 1
        copies = torch.cat([self.counts[:-1], counted.to(self.counts)])
        total = torch.zeros_like(copies).index_add_(0, group, copies[order])
        copies.index_copy_(0, order, total[group])
        stays = torch.zeros_like(starts)
        stays.index_copy_(0, order, starts & (group < size) & pool.isfinite())
        held, enters = stays[:size], stays[size:]
        free = held.int().argsort()  # the places that are given up, first
        place = torch.where(enters, free[(enters.cumsum(0) - 1).clamp_min(0)], size)
        self.keys[:-1].masked_fill_(~held, torch.inf)
        self.counts[:-1].copy_(torch.where(held, copies[:size], 0))
        for column, new in (
            (self.keys, keys), (self.u, u), (self.lengths, lengths), (self.labels, labels),
            (self.counts, copies[size:]),
        ):  # fmt: skip
            column.index_copy_(0, place, new)

    def rows(self) -> tuple[Float[Tensor, "n D"], Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return n <= S rows, repeated as often as they were read, their lengths and classes.

        Of more than S the copies are thinned out evenly (systematic sampling).
        """
        order = self.keys[:-1].argsort()
        ends = self.counts[order].cumsum(0)
        total = int(ends[-1])
        n = min(len(order), total)
        middles = (torch.arange(n, device=order.device).double() + 0.5) * (total / max(1, n))
        index = order[torch.searchsorted(ends.double(), middles)]
        return self.u[index], self.lengths[index], self.labels[index]


@lru_cache(maxsize=8)
def row_weights(width: int) -> Float[Tensor, " D"]:
    """Return w: numbers of 16 bits would give the same p to many rows of zeros and ones.

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
    values, order = (u @ row_weights(u.shape[1]).to(u)).sort()
    dealt = torch.randperm(len(u), generator=torch.Generator().manual_seed(SEED)) % n_folds
    first = torch.searchsorted(values, values - SAME_ROW)
    return torch.empty_like(order).index_copy_(0, order, dealt.to(order)[first])


FOLDS = 5
SCORED = 2_500
"""Points of the fit set, a random sample, that are scored by cross-fitting."""
AT_ONCE = 2**22
"""Distances to class means that are held at once."""
WIDEST = 2_048
"""Head inputs; the time that they take grows with the cube of their number."""
ROUNDINGS = 8
"""Times machine epsilon and trace: a bound of what the products round."""
STRIP = 256
"""Columns of a triangle that are multiplied at once."""
SAME, SAME_MARK = 64, 1e-5
"""Bounds of equal points: of squared distances, in machine epsilons, and of marks; of lengths 1."""
COLLAPSED = 1e-3
"""Rounding of distances to points, in units of their spread, beyond which float64 is used."""
LEAST_RIDGE = 1e-13
"""Variance of a coordinate of directions; less is the rounding of float32 and of the sums."""


class ClassGaussians(NamedTuple):
    """Gaussian model of the fit set, of directions.

    Parameters
    ----------
    mean : Tensor [D]
        mu, float64: differences to it may be small.
    class_means : Tensor [C, D]
        m_c - mu; no rows where classes say nothing (one member each, or all members alike).
    total_root, within_root : Tensor [D, D]
        R with R R' = (T + e I)^-1, and with (W + e I)^-1; upper triangles. The second has no
        columns where classes say nothing.
    """

    mean: Tensor
    class_means: Tensor
    total_root: Tensor
    within_root: Tensor

    def without_classes(self) -> ClassGaussians:
        """far alone."""
        return self._replace(class_means=self.mean[None][:0], within_root=self.mean[None].T[:, :0])


class CrossFitted(NamedTuple):
    """Points of the fit set, as statistics without their fold see them, float64.

    Parameters
    ----------
    scores : Tensor [n, 4]
        near, far, cosine and local; near is 0 where classes say nothing.
    known : Tensor [n]
        Whether the other folds hold the point's class.
    labels : Tensor [n]
        Numbers of the classes.
    distances : Tensor [n, C] or None
        d_c, infinite for classes that the other folds lack; None for more than ``WIDEST`` classes,
        and where classes say nothing.
    left_out : Tensor [n, 4] or None
        ``scores`` without the point's class; None below three classes, and where they say nothing.
    """

    scores: Tensor
    known: Tensor
    labels: Tensor
    distances: Tensor | None
    left_out: Tensor | None


class FitSet(NamedTuple):
    """Scatter of a fit set and a sample of its points: directions [n, D], lengths and labels [n].

    Lengths are log |h|, zeros where they are not used. ``dtype`` is that in which the sampled
    points are compared: that of the features, or float64.
    """

    scatter: Scatter
    u: Tensor
    lengths: Tensor
    labels: Tensor
    dtype: torch.dtype

    @classmethod
    def read(
        cls,
        blocks: Iterable[Block],
        classes: Int[Tensor, " C"],
        n_points: int,
        *,
        use_lengths: bool = True,
    ) -> FitSet | None:
        """Read blocks once; ``classes`` are the labels that occur, ascending. None if too wide.

        Rows of zeros, which have no direction, do not count.
        """
        total, sample = None, None
        for block in blocks:
            if block.features.shape[1] > WIDEST:
                return None
            u, lengths = directions(block.features)
            labels, has_direction = torch.searchsorted(classes, block.labels), lengths.isfinite()
            lengths = lengths if use_lengths else torch.zeros_like(lengths)
            if total is None or sample is None:
                total = CentredSums.zeros(len(classes), block.features)
                sample = RowSample.empty(min(SCORED, n_points), u)
            total.add_(u, labels, has_direction)  # nothing here waits for a device
            sample.add_(u, lengths, labels, has_direction)
        if total is None or sample is None:
            return None
        scatter = total.scatter()
        collapsed = scatter.collapsed(total.dtype)
        return cls(scatter, *sample.rows(), torch.float64 if collapsed else total.dtype)

    def cross_fitted(self, by_class: bool = True) -> CrossFitted | None:
        """Each sampled point, seen without its fold; None where a fold leaves too few points.

        Without ``by_class``, and where a fold leaves classes that say nothing, near is 0.
        """
        u, labels, n_classes = self.u, self.labels, len(self.scatter.counts)
        fold = fold_of(u, FOLDS)
        parts = []
        for number in range(min(FOLDS, len(u))):
            gone = fold == number
            rest = self.scatter.without(u[gone], labels[gone])
            if (factors := rest.factors()) is None:
                return None
            parts.append((gone, rest.counts > 0, factors))
        by_class = by_class and all(factors.within is not None for *_, factors in parts)
        few = by_class and n_classes <= WIDEST
        scores, known = u.new_zeros(len(u), 4), torch.ones_like(labels, dtype=torch.bool)
        distances = u.new_full((len(u) if few else 0, n_classes), torch.inf)
        for gone, held, factors in parts:
            scores[gone] = self._scored(gone, factors, by_class)
            known[gone] = held[labels[gone]] if by_class else True
            if few:
                x = factors.within_whitened(u[gone] - factors.mean)
                means = factors.within_whitened(factors.class_means)
                rows, columns = gone.nonzero(), held.nonzero()[:, 0]
                distances[rows, columns] = squared_distances(x, means)
        left_out = self._left_out() if by_class else None
        return CrossFitted(scores, known, labels, distances if few else None, left_out)

    def _left_out(self) -> Float[Tensor, "n 4"] | None:
        """``scores`` of each sampled point by the other classes alone; None below three classes."""
        present = (self.scatter.counts > 0).nonzero()[:, 0]
        if len(present) < 3:
            return None
        generator = torch.Generator().manual_seed(SEED)
        dealt = torch.randperm(len(present), generator=generator) % min(FOLDS, len(present))
        group = torch.zeros_like(self.scatter.counts).index_copy_(0, present, dealt.to(present))
        scores = self.u.new_zeros(len(self.u), 4)
        for number in dealt.unique().tolist():
            gone = group[self.labels] == number
            rest = self.scatter.without(self.u[gone], self.labels[gone])
            factors = rest.without_classes(group == number).factors()
            if factors is None or factors.within is None or bool(gone.all()):
                return None
            scores[gone] = self._scored(gone, factors, by_class=True)
        return scores

    def _scored(self, gone: Bool[Tensor, " n"], factors: Factors, by_class: bool) -> Tensor:
        """near, far, cosine, local of the points that are ``gone``, by the others [m, 4]."""
        x, points = self.u[gone] - factors.mean, self.u[~gone] - factors.mean
        root = factors.within if by_class else factors.total
        assert root is not None
        far, near = factors.total_whitened(x).square().sum(1), x.new_zeros(len(x))
        fast, others = x.to(self.dtype), points.to(self.dtype)
        lower = root.to(self.dtype)
        both = _whitened(lower, fast), _whitened(lower, others)
        cosine, local = nearest_points(fast, others, *both)
        if by_class:
            exact, means = _whitened(root, x), _whitened(root, factors.class_means)
            near = nearest_distance(exact, means) - far
        return torch.stack([near, far, cosine.to(far), local.to(far)], 1)


@dataclass(frozen=True)
class CentredSums:
    """Sums of one pass, about a centre for each class.

    Parameters
    ----------
    counts : Tensor [C] int64
        n_c.
    centres, first : Tensor [C, D] float64
        p_c, and ``s_c = sum_{i in c} x_i`` with ``x_i = u_i - p_c``.
    second : Tensor [D, D] float64
        ``sum_i x_i x_i'``, its upper triangle.
    dtype : torch.dtype
        Of the products: that of the features.
    """

    counts: Tensor
    centres: Tensor
    first: Tensor
    second: Tensor
    dtype: torch.dtype

    @classmethod
    def zeros(cls, n_classes: int, features: Tensor) -> CentredSums:
        """Return the sums of no points."""
        counts = torch.zeros(n_classes, dtype=torch.int64, device=features.device)
        first, second = (
            torch.zeros(n, features.shape[1], dtype=torch.float64, device=features.device)
            for n in (n_classes, features.shape[1])
        )
        return cls(counts, first.clone(), first, second, features.dtype)

    def add_(self, u: Tensor, labels: Tensor, counted: Tensor) -> None:
        """Add u [n, D] in float64; the rows that are not ``counted`` [n] are zeros."""
        members = torch.zeros_like(self.counts).index_add_(0, labels, counted.to(self.counts))
        new = counted & (self.counts[labels] == 0)
        self.centres.index_add_(
            0, labels, u * (new / members[labels].clamp_min(1).double())[:, None]
        )
        self.counts.add_(members)
        x = (u - self.centres[labels]) * counted[:, None]
        self.first.index_add_(0, labels, x)
        x = x.to(self.dtype)
        self.second.add_(upper_gram(x, x))

    def scatter(self) -> Scatter:
        """About the means of the classes, and about that of all."""
        counts = self.counts.double()
        offsets = self.first / counts.clamp_min(1)[:, None]
        moved = (offsets * counts.sqrt()[:, None]).to(self.dtype)
        second = self.second.triu() + self.second.triu(1).mT
        within = second - moved.mT @ moved
        means = self.centres + offsets
        mean = counts @ means / counts.sum().clamp_min(1)
        between = (means - mean) * counts.sqrt()[:, None]
        rounding = ROUNDINGS * torch.finfo(self.dtype).eps * float(second.trace())
        return Scatter(self.counts, means, mean, within, within + between.mT @ between, rounding)


@dataclass(frozen=True)
class Scatter:
    """Sums of squares of directions, without the divisors of W and T; float64.

    Parameters
    ----------
    counts : Tensor [C] int64
    means : Tensor [C, D]
        m_c; zeros for classes without points.
    mean : Tensor [D]
        mu.
    within, total : Tensor [D, D]
        About the m_c, and about mu.
    rounding : float
        Bound of the eigenvalues of their rounding error, which leaving points out does not lower.
    """

    counts: Tensor
    means: Tensor
    mean: Tensor
    within: Tensor
    total: Tensor
    rounding: float

    def without(self, u: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> Scatter:
        """That of all points but these.

        ``S - sum_i x_i x_i' - s s' / (n - k)`` with x about the mean of all n, and s the sum of
        the k that are left out (of W: class by class).
        """
        gone = torch.zeros_like(self.counts).index_add_(0, labels, torch.ones_like(labels))
        left, n_left = self.counts - gone, max(1, int(self.counts.sum()) - len(u))
        x = u - self.means[labels]
        sums = torch.zeros_like(self.means).index_add_(0, labels, x)
        some = (gone > 0) & (left > 0)
        moved = sums[some] / left[some, None].double().sqrt()
        means = torch.where(left[:, None] > 0, self.means - sums / left.clamp_min(1)[:, None], 0)
        y, away = u - self.mean, (u - self.mean).sum(0)
        x, y = torch.cat([x, moved]), torch.cat([y, away[None] / n_left**0.5])
        mean, within = self.mean - away / n_left, self.within - x.mT @ x
        total = self.total - y.mT @ y
        return replace(self, counts=left, means=means, mean=mean, within=within, total=total)

    def collapsed(self, dtype: torch.dtype) -> bool:
        """Return whether squares of ``dtype`` lose the differences within classes.

        The nearest point is found by |a|^2 - 2 a b: of the size tr T / tr W times what it compares.
        """
        ratio = float(self.total.trace() / self.within.trace().clamp_min(1e-300))
        return torch.finfo(dtype).eps * ratio * len(self.mean) ** 0.5 > COLLAPSED

    def without_classes(self, gone: Bool[Tensor, " C"]) -> Scatter:
        """That of the other classes, with the W of all: T = W + what differs between those left."""
        degrees = max(1, int(self.counts.sum()) - int((self.counts > 0).sum()))
        counts = self.counts.masked_fill(gone, 0)
        n, left = int(counts.sum()), int((counts > 0).sum())
        within = self.within * (max(0, n - left) / degrees)
        means = self.means.masked_fill(gone[:, None], 0)
        mean = counts.double() @ means / max(1, n)
        between = (means - mean) * counts.double().sqrt()[:, None]
        total = within + between.mT @ between
        return replace(self, counts=counts, means=means, mean=mean, within=within, total=total)

    def factors(self) -> Factors | None:
        """Return the factors; None if all points are alike, or all members of each class."""
        known = self.counts > 0
        n, n_classes, width = int(self.counts.sum()), int(known.sum()), len(self.mean)
        if n < 2:
            return None
        total, degrees = self.total / n, max(1, n - n_classes)
        within = self.within / degrees
        ridge, usable = float(within.trace()) / width, n > n_classes
        least = max(LEAST_RIDGE * n, self.rounding)  # what rounds is of n points
        if not usable or ridge * degrees < least:
            ridge, usable = float(total.trace()) / width, False
        if ridge * n < least:
            return None
        means = self.means[known] - self.mean
        lower = _factor(within, ridge) if usable else None
        return Factors(self.mean, means, _factor(total, ridge), lower)


class Factors(NamedTuple):
    """mu [D], m_c - mu [C, D], and the Cholesky factors L of T + e I and of W + e I [D, D].

    The second is None where classes say nothing.
    """

    mean: Tensor
    class_means: Tensor
    total: Tensor
    within: Tensor | None

    def total_whitened(self, gaps: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """``L^-1 x`` of each row, of T."""
        return _whitened(self.total, gaps)

    def within_whitened(self, gaps: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """The same of W."""
        assert self.within is not None
        return _whitened(self.within, gaps)

    def gaussians(self) -> ClassGaussians:
        """With the inverses of the factors, for many points."""
        total = _inverse_root(self.total)
        if self.within is None:
            return ClassGaussians(self.mean, self.class_means, total, total).without_classes()
        return ClassGaussians(self.mean, self.class_means, total, _inverse_root(self.within))


def times_upper(x: Float[Tensor, "n A"], upper: Float[Tensor, "A A"]) -> Float[Tensor, "n A"]:
    """``X R`` for an upper triangle R: of each strip of columns, the rows above its end.

    Examples
    --------
    >>> times_upper(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([[1., 5.]])
    """
    width = upper.shape[1]
    if width <= STRIP:
        return x @ upper
    out = x.new_empty(len(x), width)
    for start in range(0, width, STRIP):
        stop = min(start + STRIP, width)
        out[:, start:stop] = x[:, :stop] @ upper[:stop, start:stop]  # gradients may pass
    return out


def directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """h / |h| [n, D] and log |h| [n] in float64; zeros stay zeros, of log length -infinity."""
    h, longest = features.double(), None
    if features.dtype == torch.float64:  # whose squares may overflow, as those of float32 do not
        longest = h.abs().amax(1, keepdim=True)
        h = h / longest.where(longest > 0, 1)
    lengths = h.norm(dim=1)
    u, logs = h / lengths.where(lengths > 0, 1)[:, None], lengths.log()
    return u, logs if longest is None else logs + longest[:, 0].log()


def nearest_distance(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """min_c d_c [B] of whitened vectors; the differences to the nearest class are not expanded."""
    sizes = classes.square().sum(1)
    parts = a.split(rows_at_once(classes))
    nearest = torch.cat([(sizes - 2 * part @ classes.mT).argmin(1) for part in parts])
    return (a - classes[nearest]).square().sum(1)


def nearest_points(
    x: Float[Tensor, "B D"],
    points: Float[Tensor, "S D"],
    white: Float[Tensor, "B E"],
    white_points: Float[Tensor, "S E"],
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """cosine and local [B]: squared distances to the nearest point that is not x itself.

    The points as they are say which is the same; the differences to the nearest are not expanded.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    >>> nearest_points(x, x, 2 * x, 2 * x)
    (tensor([9., 9.]), tensor([36., 36.]))
    """
    weights, found = row_weights(x.shape[1]).to(x), []
    for part, white_part in zip(*(a.split(rows_at_once(points)) for a in (x, white)), strict=True):
        found.append(torch.stack(others_of(part, points, white_part, white_points, weights)))
    cosine, local = torch.cat(found, 1)
    return cosine, local


def others_of(
    x: Tensor, points: Tensor, white: Tensor, white_points: Tensor, weights: Tensor
) -> list[Tensor]:
    """``nearest_points`` of a part, as a graph takes it.

    Equal points have a distance that is rounding, and the same product with the ``weights``: the
    distance alone would take points that are a thousandth apart for equal in float32.
    """
    sizes = points.square().sum(1) + x.square().sum(1, keepdim=True)
    apart = sizes - 2 * x @ points.mT
    marks = (x @ weights)[:, None] - points @ weights
    same = apart <= SAME * torch.finfo(x.dtype).eps * sizes
    same = same & (marks.abs() <= SAME_MARK * sizes.sqrt())
    white_apart = white_points.square().sum(1) - 2 * white @ white_points.mT
    found = []
    for a, b, d in ((x, points, apart), (white, white_points, white_apart)):
        nearest = d.masked_fill(same, torch.inf).argmin(1)
        found.append((a - b[nearest]).square().sum(1))
    return found


def rows_at_once(columns: Tensor) -> int:
    """Rows of a product with ``columns`` that are held at once."""
    return max(64, AT_ONCE // len(columns))


def squared_distances(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """d_c [B, C] of whitened vectors, expanded."""
    sizes = a.square().sum(1, keepdim=True) + classes.square().sum(1)
    return (sizes - 2 * a @ classes.mT).clamp_min(0)


def _whitened(lower: Tensor, gaps: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(lower, gaps.mT, upper=False).mT


def _factor(covariance: Tensor, ridge: float) -> Tensor:
    """L with L L' = C + e I."""
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky(covariance + ridge * eye)


def _inverse_root(factor: Tensor) -> Tensor:
    """R with R R' = (L L')^-1."""
    eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, eye, upper=False).mT.contiguous()
