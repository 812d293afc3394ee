"""The pass over points: their terms of a summand, given the targets of their pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from laplace_metric.contrastive.class_sums import ClassSums
from laplace_metric.contrastive.passes.checks import check_finite_sums, check_same_points
from laplace_metric.contrastive.passes.protocol import Pass
from laplace_metric.contrastive.statistics import UNNAMED, Statistics
from laplace_metric.contrastive.sums import Summand, add_terms
from laplace_metric.contrastive.targets import Targets
from laplace_metric.features import Block, FeatureSource


@dataclass(frozen=True)
class PointsPass(Pass):
    """``2 sum_i J_i^T T_i J_i / r_i^2``, and the pairs that the targets know one by one.

    Parameters
    ----------
    summand : Summand
        What is summed.
    targets : tuple of Targets
        w_i and m_i of each kind of pairs; they add up.
    whole : ClassSums
        Of the first pass, to check that the same points are read.
    """

    summand: Summand
    targets: tuple[Targets, ...]
    whole: ClassSums

    name = "points"

    def given(self) -> list[Tensor]:
        of_targets = [t for target in self.targets for t in target.given()]
        return [*self.whole.tensors, *self.summand.given, *of_targets]

    def settings(self) -> dict[str, Any]:
        kinds = [str(target) for target in self.targets]
        return {"summand": type(self.summand).__name__, "targets": kinds}

    def start(self, source: FeatureSource) -> Statistics:
        counts = ClassSums.zeros(self.whole.classes, 0)
        return Statistics(UNNAMED, counts, tuple(self.summand.zeros())).to(source.device)

    def add(self, so_far: Statistics, block: Block) -> None:
        so_far.by_class.add_(block.labels)
        points = self.points(block)
        w, m = self.targets[0].sums(points, block.labels)
        for more in self.targets[1:]:
            others = more.sums(points, block.labels)
            w, m = w + others[0], m + others[1]
        blocks = self.geometry.point_blocks(points.directions, w, m)
        add_terms(so_far.totals, self.summand.points(points, blocks))
        for target in self.targets:
            for columns, y in target.pairs(points, block.labels):
                add_terms(so_far.totals, self.summand.pairs(points, columns, y))

    def finish(self, whole: Statistics) -> Statistics:
        check_same_points(whole.by_class, self.whole)
        check_finite_sums(whole)
        return whole
