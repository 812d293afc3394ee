"""Curvature terms of any head, from its Jacobian J alone: the diagonal, or all of H.

``LinearDense`` is the dense term of a linear head, whose Jacobian needs not be written out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.curvature._curvature_term import CurvatureTerm, Tile
from laplace_metric.curvature._statistics import Terms
from laplace_metric.curvature.by_class import PointBlocks, Points, about_origin, centre
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian


class JacobianTerm(CurvatureTerm):
    """Curvature term that uses only the Jacobian of the head, with one total."""

    inputs: Sequence[Tensor] = ()
    n_dimensions: int
    """Number of dimensions of the total, each of size P."""

    def __init__(self, head: HeadJacobian) -> None:
        self.head = head

    def __str__(self) -> str:
        return type(self).__name__

    def zeros(self) -> list[Tensor]:
        shape = (self.head.n_parameters,) * self.n_dimensions
        return [torch.zeros(shape, dtype=torch.float64, device=self.head.parameters.device)]

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        z, (total,) = self.head.n_outputs, self.zeros()
        for j, right in self.head.jacobians(columns.features):
            right = normalized_projection(columns[j], z) @ right  # [m, Z, P]
            for i, left in self.head.jacobians(rows.features):
                left = normalized_projection(rows[i], z) @ left
                pulled = torch.einsum("ij,jzp->izp", targets[i, j], right)
                total.add_(self._product(left, pulled).double(), alpha=-2)
        return [total]

    def tiles(self) -> list[Tile]:
        """Return one tile of all of G_c, as a backend computes whole rows."""
        z, everything = self.head.n_outputs, slice(None)
        return [Tile(0, everything, everything, (z, self.head.n_parameters))]

    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        return self.head.vjp(points.features, normalized_projection(points, self.head.n_outputs))

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        return [self._product(sums, sums)]

    def _weighted(self, points: Points, blocks: PointBlocks) -> Float[Tensor, "n Z Z"]:
        """Return ``B_i = 2 T_i / r_i^2``."""
        return 2 * blocks.dense(self.head.n_outputs) / points.lengths[:, :, None].square()

    @abstractmethod
    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute ``sum_i X_i^T Y_i`` of X, Y [n, Z, P], or its diagonal."""


def normalized_projection(points: Points, n_outputs: int) -> Float[Tensor, "n Z Z"]:
    """Return ``(I - u_i u_i^T) / r_i`` [n, Z, Z], which turns J_i into J^_i."""
    u = points.directions.expand(-1, n_outputs)
    identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / points.lengths[:, :, None]


@final
class DiagonalTerm(JacobianTerm):
    """``diag(sum J^T B J)`` [P] by the backend's own products."""

    n_dimensions = 1

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        return [self.head.diagonal(points.features, self._weighted(points, blocks))]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum((0, 1))


class DenseTerm(JacobianTerm):
    """``sum J^T B J`` [P, P] with J [n, Z, P] materialised block by block, O(N Z P^2)."""

    n_dimensions = 2

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b, (total,) = self._weighted(points, blocks), self.zeros()
        for part, j in self.head.jacobians(points.features):
            total += self._product(j, b[part] @ j).double()
        return [total]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return left.flatten(0, 1).mT @ right.flatten(0, 1)


@final
class LinearDense(DenseTerm):
    """``T_i (x) a_i a_i^T`` of a linear head: Z^2/2 products [A, n] x [n, A], O(N P^2)."""

    head: LinearJacobian

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        layout, z = self.head.layout, self.head.n_outputs
        a = layout.augment(points.features) / points.lengths
        t, m = 2 * blocks.dense(z), centre(a)
        c = a - m
        totals = t.sum(0, dtype=torch.float64)  # [Z, Z]
        left = nn.functional.pad(c, (0, 1), value=1)  # [c, 1]: sums of t c c^T, and of t c
        # H [Z, A, Z, A] is symmetric: only blocks k >= l are multiplied, then copied
        value = torch.empty(z, a.shape[1], z, a.shape[1], dtype=torch.float64, device=a.device)
        for k in range(z):
            pulled = (t[:, k, : k + 1, None] * c[:, None, :]).flatten(1)  # [n, (k + 1) A]
            sums = (left.mT @ pulled).unflatten(1, (k + 1, -1)).transpose(0, 1)  # [k + 1, A + 1, A]
            row = about_origin(sums[:, :-1], sums[:, -1], totals[k, : k + 1], m)
            value[k, :, : k + 1] = row.transpose(0, 1)
            value[:k, :, k] = value[k, :, :k].transpose(0, 1)  # each [A, A] is symmetric
        # from [output, input] order to that of the parameters (all weights, then all biases)
        folded = torch.arange(layout.n_parameters).view(layout.n_outputs, -1)
        order = layout.flatten(folded).to(a.device)
        return [value.flatten(2).flatten(0, 1)[order][:, order]]
