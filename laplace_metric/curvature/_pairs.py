"""Pairs that are summed over: those of a whole data set in passes, those of a miner at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from laplace_metric.curvature._geometry import Geometry, Points
from laplace_metric.curvature._statistics import ClassSums
from laplace_metric.curvature.pair_weights import ClassTargets, MarginTargets, Targets
from laplace_metric.curvature.passes import ClassesPass, PointsPass, Program, class_chunks
from laplace_metric.curvature.terms import Slab, Summand, add_terms
from laplace_metric.models.jacobians import HeadJacobian


class Pairs(Protocol):
    """Some pairs with their targets."""

    def totals(self, summand: Summand) -> Program[list[Tensor]]:
        """A summand over all of them."""


@dataclass(frozen=True)
class PopulationPairs:
    """Every pair of the points that is by class or inside the margin; cross blocks if ``cross``.

    Parameters
    ----------
    by_class : ClassTargets
    margins : of each group of columns
    """

    head: HeadJacobian
    geometry: Geometry
    whole: ClassSums
    by_class: ClassTargets
    margins: Sequence[MarginTargets]
    cross: bool

    def totals(self, summand: Summand) -> Program[list[Tensor]]:
        """One pass over the points; for cross blocks by class, one a slab and chunk of classes."""
        (totals,) = yield from self._passes(summand, ((self.by_class, *self.margins),))
        return totals

    def apart(self, summand: Summand) -> Program[list[list[Tensor]]]:
        """The same pass; totals of the pairs by class, then of each group of columns."""
        groups = tuple((margin,) for margin in self.margins)
        return (yield from self._passes(summand, ((self.by_class,), *groups)))

    def _passes(
        self, summand: Summand, targets: tuple[tuple[Targets, ...], ...]
    ) -> Program[list[list[Tensor]]]:
        over_points = PointsPass(self.head, self.geometry, summand, targets, self.whole)
        done = yield over_points
        totals = [list(part) for part in over_points.split(done.totals)]
        if self.cross:
            for slab in summand.slabs():
                yield from self._cross(summand, slab, totals[0])
        return totals

    def _cross(self, summand: Summand, slab: Slab, totals: list[Tensor]) -> Program[None]:
        """``-2 ((1/P + b) sum_c G_c^T G_c - b G^T G)`` of a slab, in place."""
        within, between, overall = self.by_class.within, self.by_class.between, None
        for classes in class_chunks(self.whole, slab):
            done = yield ClassesPass(self.head, self.geometry, summand, slab, classes)
            *products, g = done.totals
            add_terms(totals, list(products), -2 * within)
            overall = g if overall is None else overall + g
        if overall is not None and between:
            add_terms(totals, summand.classes(slab, overall[None]), 2 * between)


@dataclass(frozen=True)
class TuplePairs:
    """Pairs of the points of one batch, targets Y [B, B] symmetric; cross blocks if ``cross``."""

    points: Points
    geometry: Geometry
    targets: Tensor
    cross: bool

    def totals(self, summand: Summand) -> Program[list[Tensor]]:
        """``w_i = sum_j y_ij`` and ``m_i = sum_j y_ij u_j`` by one product; no pass is needed."""
        yield from ()
        u, y = self.points.directions, self.targets
        totals = summand.zeros()
        blocks = self.geometry.point_blocks(u, y.sum(1), y @ u)
        add_terms(totals, summand.points(self.points, blocks))
        if self.cross:
            add_terms(totals, summand.pairs(self.points, self.points, y))
        return totals
