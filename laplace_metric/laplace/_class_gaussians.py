"""One Gaussian of a fit set and one for its classes: sums, covariances, and their cross-fitting.

With u = h / |h| the direction of what enters the head, mu the mean of the fit set's, m_c that of
class c, T their covariance about mu, W their covariance about the m_c (divided by N - C), and the
ridge e = tr W / D, the mean eigenvalue of W:

    far      t(u)   = (u - mu)'  (T + e I)^-1 (u - mu)
    distance d_c(u) = (u - m_c)' (W + e I)^-1 (u - m_c)

Cross-fitted: five folds of the fit set, each scored by the statistics of all other points, which
are the sums without that fold's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.models.features import Block

FOLDS = 5
SCORED = 2_500
"""Points of the fit set, a random choice, that are scored by cross-fitting."""
SEED = 0
AT_ONCE = 2**22
"""Distances to class means that are held at once."""
WIDEST = 2_048
"""Head inputs; the time that they take grows with the cube of their number."""
LEAST_RIDGE = 1e-13
"""Variance of a coordinate of directions; less is the rounding of float32 and of the sums."""


class ClassGaussians(NamedTuple):
    """What the fit set says of directions.

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

    def whitened(self, u: Float[Tensor, "B D"]) -> tuple[Tensor, Tensor]:
        """u and the class means as W sees them, [B, D] and [C, D]."""
        x = (u - self.mean).to(self.within_root)
        return x @ self.within_root, self.class_means @ self.within_root

    def far(self, u: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """t."""
        return ((u - self.mean).to(self.total_root) @ self.total_root).square().sum(1)


class CrossFitted(NamedTuple):
    """Points of the fit set, as statistics without their fold see them, float64.

    Parameters
    ----------
    far : Tensor [n]
    nearest : Tensor [n] or None
        min_c d_c; None where classes say nothing.
    known : Tensor [n]
        Whether the other folds hold the point's class.
    labels : Tensor [n]
        Numbers of the classes.
    distances : Tensor [n, C] or None
        d_c, infinite for classes that the other folds lack; None for more than ``WIDEST`` classes.
    """

    far: Tensor
    nearest: Tensor | None
    known: Tensor
    labels: Tensor
    distances: Tensor | None


class FitSet(NamedTuple):
    """The sums of a fit set and a sample of its points: directions [n, D] and labels [n]."""

    sums: DirectionSums
    u: Tensor
    labels: Tensor

    @classmethod
    def read(
        cls, blocks: Iterable[Block], classes: Int[Tensor, " C"], n_points: int
    ) -> FitSet | None:
        """One pass; ``classes`` are the labels that occur, ascending. None if too wide.

        Rows of zeros, which have no direction, do not count.
        """
        chosen = sorted(_order(n_points)[:SCORED].tolist())
        total, parts = None, []
        for block in blocks:
            if block.features.shape[1] > WIDEST:
                return None
            u, lengths = directions(block.features)
            labels, has_direction = torch.searchsorted(classes, block.labels), lengths > 0
            total = total or DirectionSums.zeros(len(classes), u)
            total.add_(u, labels, has_direction)  # nothing here waits for a device
            ends = (bisect_left(chosen, i) for i in (block.start, block.start + len(u)))
            rows = torch.tensor(chosen[slice(*ends)], dtype=torch.int64).to(u.device) - block.start
            parts.append((u[rows], labels[rows], has_direction[rows]))
        if total is None:
            return None
        u, labels, has_direction = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return cls(total, u[has_direction], labels[has_direction])

    def cross_fitted(self) -> CrossFitted | None:
        """Each sampled point, seen without its fold; None where a fold leaves too few points."""
        u, labels, n_classes = self.u, self.labels, len(self.sums.counts)
        folds = _order(len(u)).to(u.device) % FOLDS
        far, nearest = u.new_empty(len(u)), u.new_empty(len(u))
        known = torch.zeros_like(labels, dtype=torch.bool)
        classes_differ, few = True, n_classes <= WIDEST
        distances = u.new_full((len(u) if few else 0, n_classes), torch.inf)
        for fold in range(min(FOLDS, len(u))):
            rows = (folds == fold).nonzero()[:, 0]
            rest = self.sums.without(u[rows], labels[rows])
            if (gaussians := rest.gaussians()) is None:
                return None
            far[rows], held = gaussians.far(u[rows]), rest.counts > 0
            known[rows] = held[labels[rows]]
            if not len(gaussians.class_means):
                classes_differ = False
                continue
            pair = gaussians.whitened(u[rows])
            nearest[rows] = nearest_distance(*pair)
            if few:
                distances[rows[:, None], held.nonzero()[:, 0]] = squared_distances(*pair)
        if not classes_differ:
            return CrossFitted(far, None, known, labels, None)
        return CrossFitted(far, nearest, known, labels, distances if few else None)


@dataclass(frozen=True)
class DirectionSums:
    """Numbers of points [C], sums of u [C, D] by class, and of u u' [D, D]; float64."""

    counts: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def zeros(cls, n_classes: int, like: Tensor) -> DirectionSums:
        """Of no points."""
        n_columns = like.shape[1]
        counts = torch.zeros(n_classes, dtype=torch.int64, device=like.device)
        return cls(counts, like.new_zeros(n_classes, n_columns), like.new_zeros(2 * [n_columns]))

    def add_(self, u: Tensor, labels: Tensor, counted: Tensor) -> DirectionSums:
        """Add u [n, D]; the rows that are not ``counted`` [n] are zeros."""
        self.counts.index_add_(0, labels, counted.to(self.counts))
        self.first.index_add_(0, labels, u)
        self.second.addmm_(u.mT, u)
        return self

    def without(self, u: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> DirectionSums:
        """The sums over all points but these."""
        part = DirectionSums.zeros(len(self.counts), u).add_(u, labels, torch.ones_like(labels))
        first, second = self.first - part.first, self.second - part.second
        return DirectionSums(self.counts - part.counts, first, second)

    def gaussians(self) -> ClassGaussians | None:
        """None if all points are alike; without classes if all members of each are."""
        known = self.counts > 0
        n, n_classes, width = int(self.counts.sum()), int(known.sum()), len(self.second)
        if n < 2:
            return None
        mean = self.first.sum(0) / n
        total = self.second / n - torch.outer(mean, mean)
        sums = self.first[known]
        means = sums / self.counts[known, None]
        degrees = max(1, n - n_classes)
        within = (self.second - means.mT @ sums) / degrees
        ridge = float(within.trace()) / width
        if n == n_classes or ridge < LEAST_RIDGE * n / degrees:  # what cancelled was n / degrees
            ridge, n_classes = float(total.trace()) / width, 0
        if ridge < LEAST_RIDGE:
            return None
        roots = (_inverse_root(c, ridge) for c in (total, within if n_classes else total))
        gaussians = ClassGaussians(mean, means - mean, *roots)
        return gaussians if n_classes else gaussians.without_classes()


def directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """h / |h| [n, D] in float64, and lengths [n], up to a factor; zeros stay zeros."""
    h = features.double()
    if features.dtype == torch.float64:  # whose squares may overflow, as those of float32 do not
        longest = h.abs().amax(1, keepdim=True)
        h = h / longest.where(longest > 0, 1)
    lengths = h.norm(dim=1)
    return h / lengths.where(lengths > 0, 1)[:, None], lengths


def nearest_distance(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """min_c d_c [B] of whitened vectors; the differences to the nearest class are not expanded."""
    sizes = classes.square().sum(1)
    rows = max(64, AT_ONCE // len(classes))
    nearest = torch.cat([(sizes - 2 * part @ classes.mT).argmin(1) for part in a.split(rows)])
    return (a - classes[nearest]).square().sum(1)


def squared_distances(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """d_c [B, C] of whitened vectors, expanded."""
    sizes = a.square().sum(1, keepdim=True) + classes.square().sum(1)
    return (sizes - 2 * a @ classes.mT).clamp_min(0)


def _order(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))


def _inverse_root(covariance: Tensor, ridge: float) -> Tensor:
    """R with R R' = (C + e I)^-1: the inverse of the Cholesky factor, transposed."""
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    factor = torch.linalg.cholesky(covariance + ridge * eye)
    return torch.linalg.solve_triangular(factor, eye, upper=False).mT.contiguous()
