"""ALL pairs from class sums: never a pair list, linear in the number of points.

Every target is one of two numbers, ``y_ij = 1/P`` inside a class and ``-b`` between classes
(``b = 1/M``, or 0 where negatives do not count here), so sums over pairs are sums over classes:

    w_i = n_c/P - b (N - n_c)          m_i = s_c/P - b (s - s_c)           c the class of i
    sum_ij y_ij J^_i^T J^_j = (1/P + b) sum_c G_c^T G_c - b G^T G          G_c = sum_{i in c} J^_i

with s_c the class sum of directions, s = sum_c s_c, G = sum_c G_c. Two phases, each one pass over
the features: class sums, then the products. (From Warburg et al. 2023, LAM, eqs 12, 98-102.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

from torch import Tensor

from laplace_metric.contrastive.geometry import Geometry, Points
from laplace_metric.contrastive.pairs.protocol import Accumulator
from laplace_metric.contrastive.statistics import ClassSums
from laplace_metric.contrastive.targets import PairCounts, class_weights
from laplace_metric.features import FeatureStore
from laplace_metric.jacobians import HeadJacobian


def collect_class_sums(store: FeatureStore, head: HeadJacobian, geometry: Geometry) -> ClassSums:
    """Phase one: counts, and for arccos the class sums of directions s_c [C, Z]."""
    if not geometry.curved_loss:
        return ClassSums.of(store.labels)
    return reduce(
        add,
        (
            ClassSums.of(store.labels[part], geometry.points(h, head.raw(h)).directions)
            for part, h in store.blocks()
        ),
    )


@dataclass(frozen=True)
class ClassPairs:
    """Every positive pair, and every negative one if ``negatives``; cross blocks if ``cross``."""

    store: FeatureStore
    head: HeadJacobian
    geometry: Geometry
    sums: ClassSums
    negatives: bool
    cross: bool

    def feed(self, accumulator: Accumulator) -> None:
        """Phase two."""
        self._feed_points(accumulator)
        if self.cross:
            within = PairCounts.of(self.sums.counts).positive_weight + self._negative_weight
            accumulator.classes(self._groups, within, self._negative_weight)

    @property
    def _negative_weight(self) -> float:
        """b."""
        return PairCounts.of(self.sums.counts).negative_weight if self.negatives else 0.0

    def _targets(self) -> tuple[Tensor, Tensor]:
        """w_c [C] and m_c [C, Z] (see the module's formulas)."""
        s_c, s, b = self.sums.sums, self.sums.sums.sum(0), self._negative_weight
        positive = PairCounts.of(self.sums.counts).positive_weight
        weight = class_weights(self.sums.counts, negatives=self.negatives)
        return weight, positive * s_c - b * (s - s_c)

    def _feed_points(self, accumulator: Accumulator) -> None:
        weight, pull = self._targets()
        for part, h in self.store.blocks():
            points = self.geometry.points(h, self.head.raw(h))
            position = self.sums.index(self.store.labels[part])
            w, m = (values.to(h.dtype)[position] for values in (weight, pull))
            accumulator.points(points, self.geometry.point_blocks(points.directions, w, m))

    def _groups(self, rows: int) -> Iterator[Iterator[Points]]:
        order = self.store.labels.argsort(stable=True)
        for members in order.split(self.sums.counts.tolist()):
            yield self._blocks(members, rows)

    def _blocks(self, members: Tensor, rows: int) -> Iterator[Points]:
        for index in members.split(rows):
            h = self.store.rows(index)
            yield self.geometry.points(h, self.head.raw(h))
