"""H [P, P] in full: of a linear head from its structure, of any head from its Jacobian."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.contrastive.blocks import PointBlocks
from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.sums.general import GeneralSummand, weighted_blocks
from laplace_metric.contrastive.sums.protocol import Slab, Terms
from laplace_metric.curvature import DenseSum
from laplace_metric.jacobians import LinearJacobian


class GeneralDense(GeneralSummand):
    """``sum J^T B J`` with J [n, Z, P] materialised block by block, O(N Z P^2)."""

    def zeros(self) -> list[Tensor]:
        return self.empty(self.head.n_parameters, self.head.n_parameters)

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        (total,) = self.zeros()
        for part, j in self.head.jacobians(points.features):
            total += self._product(j, b[part] @ j).double()
        return [total]

    def classes(self, slab: Slab, sums: Tensor) -> Terms:
        rows = sums.flatten(0, 1)
        return [rows.mT @ rows]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return left.flatten(0, 1).mT @ right.flatten(0, 1)

    def result(self, totals: Sequence[Tensor]) -> DenseSum:
        """H, symmetric, in parameter order."""
        return DenseSum((totals[0] + totals[0].mT) / 2)


class LinearDense(GeneralDense):
    """``T_i (x) a_i a_i^T`` of a linear head: Z^2/2 products [A, n] x [n, A], O(N P^2)."""

    head: LinearJacobian

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        layout, z = self.head.layout, self.head.n_outputs
        a = layout.augment(points.features) / points.lengths
        t = 2 * blocks.dense(z)
        value = torch.empty(z, a.shape[1], z, a.shape[1], dtype=torch.float64, device=a.device)
        for k in range(z):
            pulled = (t[:, k, : k + 1, None] * a[:, None, :]).flatten(1)  # [n, (k + 1) A]
            value[k, :, : k + 1] = (a.mT @ pulled).double().unflatten(1, (k + 1, -1))
            value[:k, :, k] = value[k, :, :k].transpose(0, 1)  # each [A, A] is symmetric
        return [self._in_parameter_order(value.flatten(2).flatten(0, 1))]

    def _in_parameter_order(self, matrix: Tensor) -> Tensor:
        layout = self.head.layout
        folded = torch.arange(layout.n_parameters).view(layout.n_outputs, -1)
        order = layout.flatten(folded).to(matrix.device)
        return matrix[order][:, order]
