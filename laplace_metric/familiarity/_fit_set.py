"""A fit set read once, and its points seen by the statistics of the others (cross-fitting).

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
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.familiarity._directions import directions
from laplace_metric.familiarity._nearest import nearest_distance, nearest_points, squared_distances
from laplace_metric.familiarity._row_sample import SEED, RowSample, fold_of
from laplace_metric.familiarity._scatter import CentredSums, Factors, Scatter, whitened
from laplace_metric.models._blocks import Block

FOLDS = 5
"""Parts of the sample, each scored by the statistics of the others."""
SCORED = 2_500
"""Points of the fit set, a random sample, that are scored by cross-fitting."""
WIDEST = 2_048
"""Head inputs; the time that they take grows with the cube of their number."""


class CrossFitted(NamedTuple):
    """Points of the fit set, as statistics without their fold see them, float64.

    Parameters
    ----------
    scores : Tensor [n, 4]
        Scores near, far, cosine and local of each point; near is 0 where classes say nothing.
    known : Tensor [n]
        True where the other folds hold the point's class.
    labels : Tensor [n]
        Number of each point's class.
    distances : Tensor [n, C] or None
        Squared distances d_c to the class means, infinite for classes that the other folds lack.
        None for more than ``WIDEST`` classes, and where classes say nothing.
    left_out : Tensor [n, 4] or None
        Scores by the other classes alone, without the point's own. None below three classes, and
        where they say nothing.
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
        """Score each sampled point without its fold; None where a fold leaves too few points.

        Without ``by_class``, and where a fold leaves classes that say nothing, near is 0.
        """
        u, labels, n_classes = self.u, self.labels, len(self.scatter.counts)
        fold = fold_of(u, FOLDS)
        parts = []
        for number in range(min(FOLDS, len(u))):
            gone = fold == number
            # W and T of all points but this fold, by their sums less those of the fold: O(n D^2)
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
            if few:  # d_c [m, C] of the fold, in the columns of the classes that the others hold
                x = factors.within_whitened(u[gone] - factors.mean)
                means = factors.within_whitened(factors.class_means)
                rows, columns = gone.nonzero(), held.nonzero()[:, 0]
                distances[rows, columns] = squared_distances(x, means)
        left_out = self._left_out() if by_class else None
        return CrossFitted(scores, known, labels, distances if few else None, left_out)

    def _left_out(self) -> Float[Tensor, "n 4"] | None:
        """Score each sampled point by the other classes alone; None below three classes."""
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
        """Return near, far, cosine, local [m, 4] of the points that are ``gone``, by the others."""
        x, points = self.u[gone] - factors.mean, self.u[~gone] - factors.mean
        root = factors.within if by_class else factors.total
        assert root is not None
        far, near = factors.total_whitened(x).square().sum(1), x.new_zeros(len(x))
        fast, others = x.to(self.dtype), points.to(self.dtype)
        lower = root.to(self.dtype)
        both = whitened(lower, fast), whitened(lower, others)
        cosine, local = nearest_points(fast, others, *both)
        # near in float64: it is a difference of two distances that are large for wide inputs
        if by_class:
            exact, means = whitened(root, x), whitened(root, factors.class_means)
            near = nearest_distance(exact, means) - far
        return torch.stack([near, far, cosine.to(far), local.to(far)], 1)
