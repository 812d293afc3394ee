"""A fit set read once: sums about its class means, and a sample of its points.

With u = h / |h| the direction of what enters the head, mu the mean of the fit set's, m_c that of
class c, T their covariance about mu, W their covariance about the m_c (divided by N - C), and the
ridge e = tr W / D, the mean eigenvalue of W:

    far      t(u)   = (u - mu)'  (T + e I)^-1 (u - mu)
    distance d_c(u) = (u - m_c)' (W + e I)^-1 (u - m_c)

Two distances to the nearest point u_i of the sample, of the same form:

    local    l(u)   = min_i (u - u_i)' (W + e I)^-1 (u - u_i)        (T where classes say nothing)
    cosine   k(u)   = min_i |u - u_i|^2                              the limit of e l(u), large e

over the points that are not u itself, so that a point of the sample is compared with the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.familiarity._bursts import are_many, bursts, joined_bursts
from laplace_metric.familiarity._directions import directions
from laplace_metric.familiarity._row_sample import RowSample, SampledRows
from laplace_metric.familiarity._scatter import CentredSums, Scatter
from laplace_metric.models._blocks import Block

SAMPLED = 2_500
"""Points of the fit set, a random sample, that are kept."""
WIDEST = 8_192
"""Head inputs; the time that they take grows with the cube of their number, to a minute or two."""


TESTED = 250
"""Points that are tested for bursts."""
FEW = 0.6
"""Points, as a share of the coordinates, up to which the space that they span is used: half as many
take .7 of the time, and three quarters up to 1.1 of it."""


class FitSet(NamedTuple):
    """Scatter of a fit set and a sample of its points.

    Parameters
    ----------
    scatter : Scatter
        Sums about the means of the classes, and about the mean of all points.
    sample : SampledRows
        Directions [n, D], lengths, labels and copies of the sampled points. Lengths are log |h|,
        zeros where they are not used.
    dtype : torch.dtype
        Dtype in which the sampled points are compared: that of the features, or float64.
    """

    scatter: Scatter
    sample: SampledRows
    dtype: torch.dtype

    @classmethod
    def read(
        cls,
        blocks: Iterable[Block],
        classes: Int[Tensor, " C"],
        n_points: int,
        *,
        use_lengths: bool = True,
        width: int | None = None,
    ) -> FitSet | None:
        """Read blocks once; ``classes`` are the labels that occur, ascending. None if too wide.

        Rows of zeros, which have no direction, do not count. ``width`` is that of the space, as for
        ``CentredSums.scatter``.
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
                sample = RowSample.empty(min(SAMPLED, n_points), u)
            total.add_(u, labels, has_direction)  # nothing here waits for a device
            sample.add_(u, lengths, labels, has_direction)
        if total is None or sample is None:
            return None
        scatter = total.scatter(width)
        collapsed = scatter.collapsed(total.dtype)
        return cls(scatter, sample.rows(), torch.float64 if collapsed else total.dtype)

    def spanned(self) -> FitSet:
        """Return the same in coordinates of the space that its points span, if they are few.

        All distances among them are the same. The set itself is returned unless the sample holds
        every point, and has at most ``FEW`` times as many as there are coordinates.
        """
        n, width = self.sample.u.shape
        if n > FEW * width or n < int(self.scatter.counts.sum()):
            return self
        basis = torch.linalg.qr(self.sample.u.mT).Q
        return self._replace(
            scatter=self.scatter.within_space(basis),
            sample=self.sample._replace(u=self.sample.u @ basis),
        )

    def with_bursts_joined(self) -> FitSet:
        """Return the same with each burst of the sample as copies of its mean; itself without any.

        A point that is left out leaves with what lies with it: frames of one video see each other,
        as no new input will. Its mean stands for a burst, so that no more is left out than is
        there. Of a sample, a burst has as many members as it has there, times what it stands for.
        """
        sample = self.sample
        some = torch.linspace(0, len(sample.u) - 1, min(TESTED, len(sample.u))).long()
        count = int((bursts(sample.u, sample.labels, some).size > 0).sum())
        if not are_many(count, len(some)):
            return self
        every = torch.arange(len(sample.u))
        found = bursts(sample.u, sample.labels, every)
        burst = joined_bursts(sample.u, sample.labels, found).to(sample.u.device)
        size = burst.bincount()
        total = sample.u.new_zeros(len(size), sample.u.shape[1]).index_add_(0, burst, sample.u)
        stands_for = int(self.scatter.counts.sum()) / len(sample.u)
        copies = (size * stands_for).round().long().clamp_min(1)
        return self._replace(
            sample=sample._replace(
                u=(total / size[:, None])[burst], equal=burst, copies=copies[burst]
            )
        )
