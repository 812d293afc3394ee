"""Targets of ALL pairs from class sums: never a pair list, linear in the number of points.

Every target is one of two numbers, ``y_ij = 1/P`` inside a class and ``-b`` between classes
(``b = 1/M``, or 0 where negatives do not count here), so sums over pairs are sums over classes:

    w_i = n_c/P - b (N - n_c)          m_i = s_c/P - b (s - s_c)           c the class of i

with s_c the class sum of directions and s = sum_c s_c. (From Warburg et al. 2023, LAM, eqs 12,
98-102.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from laplace_metric.contrastive.class_sums import ClassSums
from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.targets.counts import PairCounts, class_weights


@dataclass(frozen=True)
class ClassTargets:
    """Every positive pair, and every negative one if ``negatives``."""

    whole: ClassSums
    negatives: bool

    def __str__(self) -> str:
        return f"by class, negatives={self.negatives}"

    def given(self) -> list[Tensor]:
        return []

    @cached_property
    def between(self) -> float:
        """b."""
        return PairCounts.of(self.whole.counts).negative_weight if self.negatives else 0.0

    @cached_property
    def within(self) -> float:
        """1/P + b."""
        return PairCounts.of(self.whole.counts).positive_weight + self.between

    @cached_property
    def of_classes(self) -> tuple[Tensor, Tensor]:
        """w_c [C] and m_c [C, Z] float64."""
        s_c, s, b = self.whole.sums, self.whole.sums.sum(0), self.between
        weight = class_weights(self.whole.counts, negatives=self.negatives)
        return weight, (self.within - b) * s_c - b * (s - s_c)

    def prepare(self) -> None:
        _ = self.of_classes

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        position = self.whole.position(labels)
        dtype = points.features.dtype
        weight, pull = (values.to(dtype)[position] for values in self.of_classes)
        return weight, pull

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        """None: their cross blocks come from class sums."""
        return iter(())
