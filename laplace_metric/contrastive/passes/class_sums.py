"""The first pass: counts, and for arccos the class sums of directions s_c [C, Z]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from laplace_metric.contrastive.class_sums import ClassSums
from laplace_metric.contrastive.passes.checks import check_finite_sums
from laplace_metric.contrastive.passes.protocol import Pass
from laplace_metric.contrastive.statistics import UNNAMED, Statistics
from laplace_metric.features import Block, FeatureSource


@dataclass(frozen=True)
class ClassSumsPass(Pass):
    """Reads labels, and features only where directions are summed. O(N D Z)."""

    name = "class sums"

    def given(self) -> list[Tensor]:
        return []

    def start(self, source: FeatureSource) -> Statistics:
        if not self.geometry.curved_loss:
            return Statistics(UNNAMED, ClassSums.of(source.labels))
        return Statistics(UNNAMED, ClassSums.zeros(source.classes, self.head.n_outputs))

    def blocks(self, source: FeatureSource, start: int) -> Iterator[Block]:
        return source.blocks(start) if self.geometry.curved_loss else iter(())

    def add(self, so_far: Statistics, block: Block) -> None:
        so_far.by_class.add_(block.labels, self.points(block).directions)

    def finish(self, whole: Statistics) -> Statistics:
        check_finite_sums(whole)
        return whole
