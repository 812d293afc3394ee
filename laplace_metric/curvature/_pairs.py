"""Pairs that are summed over: those of a whole data set in passes, those of a miner at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from laplace_metric.curvature._geometry import Geometry, Points
from laplace_metric.curvature._statistics import ClassSums
from laplace_metric.curvature.pair_weights import ClassPairWeights, MarginPairWeights, PairWeights
from laplace_metric.curvature.passes import ClassesPass, PassSchedule, PointsPass, class_chunks
from laplace_metric.curvature.terms import CurvatureTerm, Tile, add_terms
from laplace_metric.models.jacobians import HeadJacobian


class PairSet(Protocol):
    """Some pairs with their targets."""

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """A summand over all of them."""


@dataclass(frozen=True)
class AllPairs:
    """Every pair of the points that is by class or inside the margin; cross blocks if ``cross``.

    Parameters
    ----------
    by_class : ClassPairWeights
    margins : of each group of columns
    """

    head: HeadJacobian
    geometry: Geometry
    whole: ClassSums
    by_class: ClassPairWeights
    margins: Sequence[MarginPairWeights]
    cross: bool

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """One pass over the points; for cross blocks by class, one a slab and chunk of classes."""
        (totals,) = yield from self._passes(term, ((self.by_class, *self.margins),))
        return totals

    def apart(self, term: CurvatureTerm) -> PassSchedule[list[list[Tensor]]]:
        """The same pass; totals of the pairs by class, then of each group of columns."""
        groups = tuple((margin,) for margin in self.margins)
        return (yield from self._passes(term, ((self.by_class,), *groups)))

    def _passes(
        self, term: CurvatureTerm, targets: tuple[tuple[PairWeights, ...], ...]
    ) -> PassSchedule[list[list[Tensor]]]:
        over_points = PointsPass(self.head, self.geometry, term, targets, self.whole)
        done = yield over_points
        totals = [list(part) for part in over_points.split(done.totals)]
        if self.cross:
            for tile in term.tiles():
                yield from self._cross(term, tile, totals[0])
        return totals

    def _cross(self, term: CurvatureTerm, tile: Tile, totals: list[Tensor]) -> PassSchedule[None]:
        """``-2 ((1/P + b) sum_c G_c^T G_c - b G^T G)`` of a slab, in place."""
        within, between, overall = self.by_class.within, self.by_class.between, None
        for classes in class_chunks(self.whole, tile):
            done = yield ClassesPass(self.head, self.geometry, term, tile, classes)
            *products, g = done.totals
            add_terms(totals, list(products), -2 * within)
            overall = g if overall is None else overall + g
        if overall is not None and between:
            add_terms(totals, term.classes(tile, overall[None]), 2 * between)


@dataclass(frozen=True)
class MinedPairs:
    """Pairs of the points of one batch, targets Y [B, B] symmetric; cross blocks if ``cross``."""

    points: Points
    geometry: Geometry
    targets: Tensor
    cross: bool

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """``w_i = sum_j y_ij`` and ``m_i = sum_j y_ij u_j`` by one product; no pass is needed."""
        yield from ()
        u, y = self.points.directions, self.targets
        totals = term.zeros()
        blocks = self.geometry.point_blocks(u, y.sum(1), y @ u)
        add_terms(totals, term.points(self.points, blocks))
        if self.cross:
            add_terms(totals, term.pairs(self.points, self.points, y))
        return totals
