"""Points of a fit set as statistics without them see them, and as unknown classes will be seen.

Each sampled point is scored without itself and its copies (``_leave_one_out``). "Seen without its
class" leaves a fifth of the classes out at once: their means and points are gone, T is of the other
classes, and W and the point's own part in it are as above. Neither depends on the order of points.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import CACHE_BYTES, LEAST_ROWS, blocks
from laplace_metric.familiarity._class_gaussians import ClassGaussians
from laplace_metric.familiarity._fit_set import FitSet
from laplace_metric.familiarity._label_model import points_of
from laplace_metric.familiarity._leave_one_out import (
    OwnRows,
    Removed,
    Seen,
    removed_total,
    removed_within,
    without_row,
)
from laplace_metric.familiarity._nearest import nearest_others, squared_distances
from laplace_metric.familiarity._scatter import Scatter, cholesky
from laplace_metric.familiarity._triangles import times_upper

SCORED = 1_250
"""Points of the sample that are scored."""
GROUPS = 5
"""Parts of the classes, each of which is left out at once."""
SEED = 0
"""Seed of the order in which classes are dealt out to the groups."""
FEW = 2_000
"""Points up to which what the ridge loses with a point, of order 1 / N, is taken to first order."""


class CrossFitted(NamedTuple):
    """Points of the fit set, as statistics without them see them, float64.

    Parameters
    ----------
    scores : Tensor [n, 4]
        Scores near, far, cosine and local of each point; near is 0 where classes say nothing.
    known : Tensor [n]
        True where the point's class has other members.
    labels : Tensor [n]
        Number of each point's class.
    distances : Tensor [m, C] or None
        Squared distances d_c to the class means, infinite for a class that has no other members, of
        the first m points: as many as the label model reads. None where classes say nothing.
    left_out : Tensor [n, 4] or None
        Scores by the other classes alone, without the point's own. None below three classes, and
        where they say nothing.
    """

    scores: Tensor
    known: Tensor
    labels: Tensor
    distances: Tensor | None
    left_out: Tensor | None


def left_one_out(
    fit_set: FitSet, gaussians: ClassGaussians, by_class: bool = True
) -> CrossFitted | None:
    """Score each of up to ``SCORED`` sampled points without itself; None where few are left.

    ``gaussians`` are those of ``fit_set.scatter``. Without ``by_class``, and where what is left of
    the classes says nothing, near is 0.
    """
    scatter, sample = fit_set.scatter, fit_set.sample
    if len(sample.equal.unique()) < 2:
        return None
    own, rows = OwnRows.of(sample.equal, sample.labels, sample.copies), scored_rows(len(sample.u))
    own, labels = OwnRows(own.classes[rows], own.copies[rows]), sample.labels[rows]
    n, y = int(scatter.counts.sum()), sample.u[rows] - gaussians.mean
    rest, ridge, within = n - own.number, None, None
    if scatter.ridge is not None:
        x = sample.u[rows, None] - scatter.means[own.classes]
        within, ridge, degrees = removed_within(scatter, own, x.square().sum(2))
        by_class = by_class and bool((ridge * degrees >= scatter.least).all())
    total, ridge = removed_total(scatter, own, y.square().sum(1), ridge)
    if float(rest.min()) < 2 or bool((ridge * rest < scatter.least).any()):
        return None
    # mu is the one centre of T, whose only term is y
    centre, one = torch.zeros_like(y[:1]), torch.zeros_like(own.classes[:, :1])
    whole = _View.of(fit_set, y, rows, gaussians.total_root, centre, one)
    far = whole.to_centres(slice(None), total)[:, 0] * (n / rest).square()
    if not by_class or within is None:
        (cosine, local), _ = _to_points(fit_set, whole, total, torch.zeros_like(sample.labels))
        scores = torch.stack([torch.zeros_like(far), far, cosine, local], 1)
        return CrossFitted(scores, torch.ones_like(labels, dtype=torch.bool), labels, None, None)
    group, means = _groups_of(scatter), scatter.means - gaussians.mean
    view = _View.of(fit_set, y, rows, gaussians.within_root, means, own.classes)
    near, distances = _to_classes(scatter, own, view, within, group)
    points, foreign = _to_points(fit_set, view, within, group[sample.labels])
    scores = torch.stack([near[0] - far, far, *points], 1)
    left_out = None
    if len(group[labels].unique()) > 1:
        far = _far_of_groups(scatter, sample.u[rows], own, within, group)
        left_out = torch.stack([near[1] - far, far, *foreign], 1)
    return CrossFitted(scores, own.left(scatter)[:, 0] > 0, labels, distances, left_out)


def scored_rows(n: int) -> Int[Tensor, " m"]:
    """Return the rows of a sample of n that are scored: evenly spaced, at most ``SCORED``."""
    return torch.arange(min(n, SCORED)) * n // max(1, min(n, SCORED))


class _View(NamedTuple):
    """Scored points, sampled points and centres as a root R, or ``R R'``, sees them.

    Parameters
    ----------
    scored : Tensor [n, E] float64
        ``R' (u - mu)`` of the scored points.
    sampled : Tensor [S, E]
        ``R' (u - mu)`` of all sampled points, in the type in which they are compared.
    rows : Tensor [n]
        Places of the scored points among the sampled ones.
    centres : Tensor [C, E] float64
        ``R' (m - mu)`` of all centres.
    terms : Tensor [n, r]
        Numbers of the centres of each scored point's terms.
    twice : _View or None
        The same under ``R R' = A^-1``, where the ridge is taken to first order.
    """

    scored: Tensor
    sampled: Tensor
    rows: Tensor
    centres: Tensor
    terms: Tensor
    twice: _View | None

    @classmethod
    def of(
        cls, fit_set: FitSet, y: Tensor, rows: Tensor, root: Tensor, centres: Tensor, terms: Tensor
    ) -> _View:
        gaps = (fit_set.sample.u - fit_set.scatter.mean).to(fit_set.dtype)
        seen = times_upper(y, root), times_upper(gaps, root.to(gaps)), times_upper(centres, root)
        twice = None
        if int(fit_set.scatter.counts.sum()) <= FEW:
            scored, sampled, whitened = (x @ root.to(x).mT for x in seen)
            twice = cls(scored, sampled, rows, whitened, terms, None)
        return cls(seen[0], seen[1], rows, seen[2], terms, twice)

    def to_centres(self, part: slice, removed: Removed) -> Float[Tensor, "m C"]:
        """Return distances to all centres, without each point, of a part of the scored points."""
        twice = None if self.twice is None else self.twice._of_centres(part)
        return without_row(self._of_centres(part), removed, twice)

    def to_points(self, nearest: Int[Tensor, " n"], removed: Removed) -> Float[Tensor, " n"]:
        """Return distances to one sampled point each, without each scored point."""
        twice = None if self.twice is None else self.twice._of_points(nearest)
        return without_row(self._of_points(nearest), removed, twice)[:, 0]

    def _of_centres(self, part: slice) -> Seen:
        terms, points = self.terms[part], self.scored[part]
        squared = squared_distances(points, self.centres)
        some, place = terms.unique(return_inverse=True)
        between = squared_distances(self.centres[some], self.centres)[place]  # [m, r, C]
        pairs = between.gather(2, terms[:, None].expand(-1, terms.shape[1], -1))
        return Seen(squared, squared.gather(1, terms), between, pairs)

    def _of_points(self, nearest: Tensor) -> Seen:
        centres, points = self.centres[self.terms], self.sampled[nearest]
        squared = (self.sampled[self.rows] - points).square().sum(1, keepdim=True)
        own = (self.scored[:, None] - centres).square().sum(2)
        between = (points[:, None] - centres).square().sum(2, keepdim=True)
        if centres.shape[1] == 1:  # the distance of a centre to itself
            pairs = own.new_zeros(len(own), 1, 1)
        else:
            pairs = torch.cdist(centres, centres).square()
        return Seen(squared.to(own), own, between, pairs)


def _to_points(
    fit_set: FitSet, view: _View, removed: Removed, group: Int[Tensor, " S"]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return cosine and local to the nearest other point, and to the nearest of other groups."""
    u = fit_set.sample.u - fit_set.scatter.mean
    points = [u.to(fit_set.dtype), view.sampled]
    found = nearest_others(points, view.rows, fit_set.sample.equal, group)
    sides = []
    for at, nearest in found.unbind(1):
        cosine = (u[view.rows] - u[at]).square().sum(1)
        sides.append([cosine, view.to_points(nearest, removed)])
    return sides[0], sides[1]


def _to_classes(
    scatter: Scatter, own: OwnRows, view: _View, removed: Removed, group: Int[Tensor, " C"]
) -> tuple[Float[Tensor, "2 n"], Float[Tensor, "m C"]]:
    """Return distances to the nearest class mean, all and of other groups; and those to all.

    The latter are of the first m points, among which are those that the label model reads.
    """
    n, n_classes, kept = len(view.rows), len(group), list[Tensor]()
    nearest = view.scored.new_empty(2, n)
    row_bytes = n_classes * nearest.element_size()
    known = (own.left(scatter)[:, 0] > 0).cumsum(0)
    read = int((known <= points_of(int((scatter.counts > 0).sum()))).sum())
    for part in blocks(n, row_bytes, CACHE_BYTES, LEAST_ROWS):
        d = view.to_centres(part, Removed(*(factor[part] for factor in removed)))
        growth = OwnRows(own.classes[part], own.copies[part]).growth(scatter)
        d = (d * growth.square()).masked_fill(growth.isinf(), torch.inf)  # where d is 0, too
        mates = group[own.classes[part, :1]] == group
        nearest[0, part], nearest[1, part] = d.amin(1), d.masked_fill(mates, torch.inf).amin(1)
        if not kept or part.start < read:
            kept.append(d)
    return nearest, torch.cat(kept)


def _groups_of(scatter: Scatter) -> Int[Tensor, " C"]:
    """Return the group of each class; below three classes all have one."""
    present = (scatter.counts > 0).nonzero()[:, 0]
    groups = min(GROUPS, len(present)) if len(present) > 2 else 1
    generator = torch.Generator().manual_seed(SEED)
    dealt = torch.randperm(len(present), generator=generator) % groups
    return torch.zeros_like(scatter.counts).index_copy_(0, present, dealt.to(present))


def _far_of_groups(
    scatter: Scatter,
    u: Float[Tensor, "n D"],
    own: OwnRows,
    removed: Removed,
    group: Int[Tensor, " C"],
) -> Float[Tensor, " n"]:
    """Return far by the other groups' classes, without the point's own part in W."""
    far, ridge = u.new_empty(len(u)), scatter.ridge
    mine = group[own.classes[:, 0]]
    assert ridge is not None
    left = [scatter.without_counts(group == number) for number in mine.unique().tolist()]
    # T has a part of the W of all, and the differences between the classes that are left. The
    # groups are of about equal size: one root for all of them, at the mean part
    parts = [max(0, n - c) / max(1, n) for n, c, _, _ in left]
    scale = sum(parts) / len(parts)
    lower = cholesky(scatter.within * (scale / scatter.degrees), ridge)
    points = whitened(lower, u - scatter.mean)
    centres = whitened(lower, scatter.means - scatter.mean)
    for number, part, (n, _, counts, mean) in zip(mine.unique().tolist(), parts, left, strict=True):
        rows = mine == number
        middle = whitened(lower, (mean - scatter.mean)[None])
        weight = (counts / max(1, n)).sqrt()[:, None]
        there = counts > 0
        between = (weight * (centres - middle))[there]  # B' B is the rest of T, in this metric
        small = torch.linalg.cholesky(torch.eye(len(between)).to(between) + between @ between.mT)
        terms, place = own.classes[rows].unique(return_inverse=True)
        x, m = points[rows] - middle, centres[terms] - middle
        xb, mb = (whitened(small, y @ between.mT) for y in (x, m))

        def product(a: Tensor, b: Tensor, ab: Tensor, bb: Tensor) -> Tensor:
            return a @ b.mT - ab @ bb.mT

        mm, xm = product(m, m, mb, mb), product(x, m, xb, mb)
        xx = x.square().sum(1) - xb.square().sum(1)
        sizes = mm.diagonal()
        pairs = (sizes[:, None] + sizes - 2 * mm)[place[:, :, None], place[:, None]]
        own_terms = (xx[:, None] + sizes - 2 * xm).gather(1, place)
        seen = Seen(xx[:, None], own_terms, sizes[place][:, :, None], pairs)
        one = torch.ones_like(seen.squared)
        far[rows] = without_row(seen, Removed(removed.share[rows] * part, one, one))[:, 0]
    return far


def whitened(lower: Tensor, gaps: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
    """Return ``L^-1 x`` of each row x of ``gaps``, for a lower triangle L."""
    return torch.linalg.solve_triangular(lower, gaps.mT, upper=False).mT
