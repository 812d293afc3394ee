"""H [P, P] in full: of a linear head from its structure, of any head from its Jacobian."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.contrastive.blocks import PointBlocks
from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.pairs.protocol import Groups
from laplace_metric.contrastive.sums.general import class_sums, hat, weighted_blocks
from laplace_metric.curvature import DenseSum
from laplace_metric.jacobians import HeadJacobian, LinearJacobian


class GeneralDense:
    """``sum J^T B J`` with J [n, Z, P] materialised block by block, O(N Z P^2)."""

    def __init__(self, head: HeadJacobian, n_rows: int) -> None:
        self.head = head
        self.matrix = torch.zeros((), dtype=torch.float64)

    def _add(self, term: Tensor) -> None:
        self.matrix = self.matrix + term

    def points(self, points: Points, blocks: PointBlocks) -> None:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        for part, j in self.head.jacobians(points.features):
            self._add((j.flatten(0, 1).mT @ (b[part] @ j).flatten(0, 1)).double())

    def classes(self, groups: Groups, within: float, between: float) -> None:
        total = torch.zeros((), dtype=torch.float64)
        for g in class_sums(self.head, groups):
            total = total + g
            self._add(-2 * within * (g.mT @ g))
        self._add(2 * between * (total.mT @ total))

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> None:
        z = self.head.n_outputs
        for j, right in self.head.jacobians(columns.features):
            right = hat(columns[j], z) @ right  # [m, Z, P]
            for i, left in self.head.jacobians(rows.features):
                left = hat(rows[i], z) @ left
                pulled = torch.einsum("ij,jzp->izp", targets[i, j], right)
                self._add(-2 * (left.flatten(0, 1).mT @ pulled.flatten(0, 1)).double())

    def result(self) -> DenseSum:
        """H, symmetric, in parameter order."""
        return DenseSum((self.matrix + self.matrix.mT) / 2)


class LinearDense(GeneralDense):
    """``T_i (x) a_i a_i^T`` of a linear head: Z^2/2 products [A, n] x [n, A], O(N P^2)."""

    head: LinearJacobian

    def points(self, points: Points, blocks: PointBlocks) -> None:
        layout, z = self.head.layout, self.head.n_outputs
        a = layout.augment(points.features) / points.lengths
        t = 2 * blocks.dense(z)
        value = torch.empty(z, a.shape[1], z, a.shape[1], dtype=torch.float64, device=a.device)
        for k in range(z):
            pulled = (t[:, k, : k + 1, None] * a[:, None, :]).flatten(1)  # [n, (k + 1) A]
            value[k, :, : k + 1] = (a.mT @ pulled).double().unflatten(1, (k + 1, -1))
            value[: k + 1, :, k] = value[k, :, : k + 1].transpose(0, 1)  # each [A, A] is symmetric
        self._add(self._in_parameter_order(value.flatten(2).flatten(0, 1)))

    def _in_parameter_order(self, matrix: Tensor) -> Tensor:
        layout = self.head.layout
        folded = torch.arange(layout.n_parameters).view(layout.n_outputs, -1)
        order = layout.flatten(folded).to(matrix.device)
        return matrix[order][:, order]
