"""Explicit pairs of one batch, such as the tuples of a miner: a dense symmetric Y [B, B]."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laplace_metric.contrastive.geometry import Geometry, Points
from laplace_metric.contrastive.pairs.protocol import Accumulator


@dataclass(frozen=True)
class TuplePairs:
    """Pairs of ``points`` with targets y_ij; cross blocks if ``cross``."""

    points: Points
    geometry: Geometry
    targets: Tensor
    cross: bool

    def feed(self, accumulator: Accumulator) -> None:
        """``w_i = sum_j y_ij`` and ``m_i = sum_j y_ij u_j`` by one product."""
        u, y = self.points.directions, self.targets
        accumulator.points(self.points, self.geometry.point_blocks(u, y.sum(1), y @ u))
        if self.cross:
            accumulator.pairs(self.points, self.points, y)
