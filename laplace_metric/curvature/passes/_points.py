"""The pass over points: their terms of a summand, given the targets of their pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import torch
from torch import Tensor

from laplace_metric.curvature._geometry import Points
from laplace_metric.curvature._statistics import UNNAMED, ClassSums, Statistics
from laplace_metric.curvature.pair_weights import PairWeights
from laplace_metric.curvature.passes._checks import (
    check_finite_sums,
    check_same_directions,
    check_same_points,
    probe_direction,
)
from laplace_metric.curvature.passes._pass import Pass
from laplace_metric.curvature.terms import CurvatureTerm, add_terms
from laplace_metric.models.features import Block, FeatureSource


@dataclass(frozen=True)
class PointsPass(Pass):
    """``2 sum_i J_i^T T_i J_i / r_i^2``, and the pairs that the targets know one by one.

    Parameters
    ----------
    summand : CurvatureTerm
        What is summed.
    targets : tuple of tuples of PairWeights
        w_i and m_i of each kind of pairs; those of one tuple add up, each tuple has its totals.
    whole : ClassSums
        Of the first pass, to check that the same points are read.
    """

    term: CurvatureTerm
    targets: tuple[tuple[PairWeights, ...], ...]
    whole: ClassSums

    name = "points"

    def given(self) -> list[Tensor]:
        of_targets = [t for kind in chain.from_iterable(self.targets) for t in kind.given()]
        return [*self.whole.tensors, *self.term.given, *of_targets]

    def shared(self) -> list[Tensor]:
        return self.term.given

    @property
    def classes(self) -> Tensor:
        return self.whole.classes

    def settings(self) -> dict[str, Any]:
        kinds = [[str(kind) for kind in kinds] for kinds in self.targets]
        return {"summand": type(self.term).__name__, "targets": kinds}

    def start(self, source: FeatureSource) -> Statistics:
        for kind in chain.from_iterable(self.targets):
            kind.prepare()
        counts = ClassSums.zeros(self.whole.classes, int(self._probed))
        totals = tuple(total for _ in self.targets for total in self.term.zeros())
        return Statistics(UNNAMED, counts, totals).to(source.device)

    def add(self, so_far: Statistics, block: Block) -> None:
        points = self.points(block)
        u = points.directions
        so_far.by_class.add_(
            block.labels, u @ probe_direction(u)[:, None] if self._probed else None
        )
        for targets, totals in zip(self.targets, self.split(so_far.totals), strict=True):
            self._add(points, block.labels, targets, totals)

    def _add(
        self,
        points: Points,
        labels: Tensor,
        targets: tuple[PairWeights, ...],
        totals: Sequence[Tensor],
    ) -> None:
        sums = [kind.sums(points, labels) for kind in targets]
        w, m = (reduce(add, side) for side in zip(*sums, strict=True))
        blocks = self.geometry.point_blocks(points.directions, w, m)
        add_terms(totals, self.term.points(points, blocks))
        for kind in targets:
            for columns, y in kind.pairs(points, labels):
                add_terms(totals, self.term.pairs(points, columns, y))

    def split(self, totals: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """The totals of each tuple of targets."""
        step = len(totals) // len(self.targets)
        return [totals[i : i + step] for i in range(0, len(totals), step)]

    def finish(self, whole: Statistics) -> Statistics:
        check_same_points(whole.by_class, self.whole)
        check_finite_sums(whole)
        if self._probed:
            eps = torch.finfo(self.head.parameters.dtype).eps
            check_same_directions(whole.by_class, self.whole, eps)
        return whole

    @property
    def _probed(self) -> bool:
        """Whether the first pass summed directions, which this one can be compared with."""
        return self.geometry.curved_loss
