"""diag(H) of any head from its Jacobian backend.

H [P, P] in full: of a linear head from its structure, of any head from its Jacobian.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._statistics import Terms
from laplace_metric.curvature.by_class import PointBlocks, Points
from laplace_metric.curvature.structures import DiagCurvature, FullCurvature
from laplace_metric.curvature.terms._protocol import CurvatureTerm, Tile
from laplace_metric.models.jacobians import HeadJacobian, LinearJacobian


def weighted_blocks(points: Points, blocks: PointBlocks, n_outputs: int) -> Float[Tensor, "n Z Z"]:
    """``B_i = 2 T_i / r_i^2`` [n, Z, Z]."""
    return 2 * blocks.dense(n_outputs) / points.lengths[:, :, None].square()


def normalized_projection(points: Points, n_outputs: int) -> Float[Tensor, "n Z Z"]:
    """``(I - u_i u_i^T) / r_i`` [n, Z, Z], which turns J_i into J^_i."""
    u = points.directions.expand(-1, n_outputs)
    identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / points.lengths[:, :, None]


class JacobianTerm(CurvatureTerm):
    """A term that knows the head by its Jacobian alone."""

    def __init__(self, head: HeadJacobian, n_rows: int) -> None:
        self.head, self.n_rows = head, n_rows

    def tiles(self) -> list[Tile]:
        """All of G [Z, P] at once: a backend gives whole rows."""
        z, everything = self.head.n_outputs, slice(None)
        return [Tile(0, everything, everything, (z, self.head.n_parameters))]

    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        return self.head.vjp(points.features, normalized_projection(points, self.head.n_outputs))

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        z, (total,) = self.head.n_outputs, self.zeros()
        for j, right in self.head.jacobians(columns.features):
            right = normalized_projection(columns[j], z) @ right  # [m, Z, P]
            for i, left in self.head.jacobians(rows.features):
                left = normalized_projection(rows[i], z) @ left
                pulled = torch.einsum("ij,jzp->izp", targets[i, j], right)
                total.add_(self._product(left, pulled).double(), alpha=-2)
        return [total]

    @abstractmethod
    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """``sum_i X_i^T Y_i`` of X, Y [n, Z, P], or its diagonal."""

    def empty(self, *shape: int) -> list[Tensor]:
        """Float64 zeros."""
        device = self.head.parameters.device
        return [torch.zeros(shape, dtype=torch.float64, device=device)]


class GeneralDiagonal(JacobianTerm):
    """``diag(sum J^T B J)`` by the backend's own products."""

    def zeros(self) -> list[Tensor]:
        return self.empty(self.head.n_parameters)

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        return [self.head.diagonal(points.features, b)]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        return [sums.square().sum((0, 1))]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum((0, 1))

    def result(self, totals: Sequence[Tensor]) -> DiagCurvature:
        """diag(H) [P] in parameter order."""
        return DiagCurvature(totals[0])


class GeneralDense(JacobianTerm):
    """``sum J^T B J`` with J [n, Z, P] materialised block by block, O(N Z P^2)."""

    def zeros(self) -> list[Tensor]:
        return self.empty(self.head.n_parameters, self.head.n_parameters)

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        (total,) = self.zeros()
        for part, j in self.head.jacobians(points.features):
            total += self._product(j, b[part] @ j).double()
        return [total]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        rows = sums.flatten(0, 1)
        return [rows.mT @ rows]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return left.flatten(0, 1).mT @ right.flatten(0, 1)

    def result(self, totals: Sequence[Tensor]) -> FullCurvature:
        """H, symmetric, in parameter order."""
        return FullCurvature((totals[0] + totals[0].mT) / 2)


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
