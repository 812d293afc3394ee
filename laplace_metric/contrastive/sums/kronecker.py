"""Products of H with one Kronecker factor: what the power iteration for ``S (x) A`` needs.

Rearranged to [O^2, A^2] (Van Loan and Pitsianis 1993), H maps a matrix over inputs to one over
outputs and back. For ``H = sum_i C_i (x) b_i b_i^T`` these contractions are

    left:   <H, A>_oo'  = sum_i C_i (b_i^T A b_i)          [O, O]
    right:  <H, S>_aa'  = sum_i <C_i, S> b_i b_i^T         [A, A]

and for the cross term they are ``sum_z G_z A G_z^T`` and ``sum_z G_z^T S G_z`` of class sums G:
no [P, P] array, and none of pairs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.contrastive.blocks import PointBlocks
from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.pairs.protocol import Groups
from laplace_metric.contrastive.sums.layered import chunks, class_sum_slabs, slab_shapes, view
from laplace_metric.jacobians import HeadJacobian
from laplace_metric.jacobians.layers import Layer


class _Contraction:
    """H contracted with ``others``, one matrix a layer; ``totals`` hold the results, float64."""

    def __init__(self, head: HeadJacobian, n_rows: int, others: Sequence[Tensor]) -> None:
        self.layers, self.others = view(head), others
        self.shapes = slab_shapes(head, n_rows)
        self.totals: list[Tensor] = [torch.zeros((), dtype=torch.float64) for _ in others]

    def _add(self, number: int, term: Tensor) -> None:
        self.totals[number] = self.totals[number] + term.double()

    def points(self, points: Points, blocks: PointBlocks) -> None:
        for number, layer in enumerate(self.layers(points)):
            other = self.others[number].to(layer.inputs)
            self._add(number, 2 * self._point_term(layer, blocks, other))

    def classes(self, groups: Groups, within: float, between: float) -> None:
        for number, shape in enumerate(self.shapes):
            for _, sums in class_sum_slabs(self.layers, groups, number, shape):
                total = torch.zeros((), dtype=torch.float64)
                for g in sums:
                    total = total + g
                    self._add(number, -2 * within * self._class_term(g, self.others[number]))
                self._add(number, 2 * between * self._class_term(total, self.others[number]))

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> None:
        n_entries = max(z * o for z, o, _ in self.shapes)
        for i, some in chunks(rows, n_entries):
            for j, others in chunks(columns, n_entries):
                both = zip(self.layers(some), self.layers(others), strict=True)
                for number, (x, y) in enumerate(both):
                    l_i, l_j = (
                        x.factor.projected(some.directions),
                        y.factor.projected(others.directions),
                    )
                    other = self.others[number].to(x.inputs)
                    term = self._pair_term((l_i, x.inputs), (l_j, y.inputs), targets[i, j], other)
                    self._add(number, -2 * term)

    @abstractmethod
    def _point_term(self, layer: Layer, blocks: PointBlocks, other: Tensor) -> Tensor: ...

    @abstractmethod
    def _class_term(self, g: Tensor, other: Tensor) -> Tensor: ...

    @abstractmethod
    def _pair_term(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], y: Tensor, other: Tensor
    ) -> Tensor: ...


class LeftContraction(_Contraction):
    """A [A, A] of each layer -> ``<H, A>`` [O, O] ([K, K] for a raw linear head)."""

    def _point_term(self, layer: Layer, blocks: PointBlocks, other: Tensor) -> Tensor:
        a, m = layer.inputs, layer.factor
        q = ((a @ other) * a).sum(1)
        u, v = m.pull_back(blocks.u), m.pull_back(blocks.v)
        outer = u.mT @ (q[:, None] * v)
        return m.gram_sum(q * blocks.alpha, outer.shape[0]) + outer + outer.mT

    def _class_term(self, g: Tensor, other: Tensor) -> Tensor:
        flat = g.transpose(0, 1).flatten(1)  # [O, s A]
        return flat @ (g @ other).transpose(0, 1).flatten(1).mT

    def _pair_term(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], y: Tensor, other: Tensor
    ) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        x = y * (a_i @ other @ a_j.mT)
        return l_i.flatten(0, 1).mT @ (x @ l_j.flatten(1)).view_as(l_i).flatten(0, 1)


class RightContraction(_Contraction):
    """S [O, O] of each layer -> ``<H, S>`` [A, A]."""

    def _point_term(self, layer: Layer, blocks: PointBlocks, other: Tensor) -> Tensor:
        a, m = layer.inputs, layer.factor
        u, v = m.pull_back(blocks.u), m.pull_back(blocks.v)
        q = blocks.alpha * m.gram_inner(other) + 2 * ((u @ other) * v).sum(1)
        return a.mT @ (q[:, None] * a)

    def _class_term(self, g: Tensor, other: Tensor) -> Tensor:
        return g.flatten(0, 1).mT @ (other @ g).flatten(0, 1)

    def _pair_term(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], y: Tensor, other: Tensor
    ) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        inner = (l_i @ other).flatten(1) @ l_j.flatten(1).mT
        return a_i.mT @ ((y * inner) @ a_j)
