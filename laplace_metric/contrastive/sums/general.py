"""diag(H) of any head from its Jacobian backend."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor

from laplace_metric.contrastive.blocks import PointBlocks
from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.pairs.protocol import Groups
from laplace_metric.curvature import DiagonalSum
from laplace_metric.features import block_rows
from laplace_metric.jacobians import HeadJacobian


def weighted_blocks(points: Points, blocks: PointBlocks, n_outputs: int) -> Tensor:
    """``B_i = 2 T_i / r_i^2`` [n, Z, Z]."""
    return 2 * blocks.dense(n_outputs) / points.lengths[:, :, None].square()


def hat(points: Points, n_outputs: int) -> Tensor:
    """``(I - u_i u_i^T) / r_i`` [n, Z, Z], which turns J_i into J^_i."""
    u = points.directions.expand(-1, n_outputs)
    identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / points.lengths[:, :, None]


def class_sums(head: HeadJacobian, groups: Groups) -> Iterator[Tensor]:
    """``G_c = sum_{i in c} J^_i`` [Z, P] float64, class by class: Z rows of backward passes."""
    for group in groups(block_rows(head.n_outputs**2, 4)):
        parts = (head.pull_back(p.features, hat(p, head.n_outputs)) for p in group)
        yield reduce(torch.add, parts)


class GeneralDiagonal:
    """``diag(sum J^T B J)`` by the backend's own products."""

    def __init__(self, head: HeadJacobian, n_rows: int) -> None:
        self.head = head
        self.total = torch.zeros((), dtype=torch.float64)

    def points(self, points: Points, blocks: PointBlocks) -> None:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        self.total = self.total + self.head.diagonal(points.features, b)

    def classes(self, groups: Groups, within: float, between: float) -> None:
        total = torch.zeros((), dtype=torch.float64)
        for g in class_sums(self.head, groups):
            total = total + g
            self.total = self.total - 2 * within * g.square().sum(0)
        self.total = self.total + 2 * between * total.square().sum(0)

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> None:
        z = self.head.n_outputs
        for j, right in self.head.jacobians(columns.features):
            right = hat(columns[j], z) @ right
            for i, left in self.head.jacobians(rows.features):
                left = hat(rows[i], z) @ left
                pulled = torch.einsum("ij,jzp->izp", targets[i, j], right)
                self.total = self.total - 2 * (left * pulled).sum((0, 1)).double()

    def result(self) -> DiagonalSum:
        """diag(H) [P] in parameter order."""
        return DiagonalSum(self.total)
