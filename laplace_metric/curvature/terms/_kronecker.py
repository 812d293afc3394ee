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

from torch import Tensor

from laplace_metric.curvature._geometry import PointBlocks, Points
from laplace_metric.curvature.terms._layered import LayeredTerm
from laplace_metric.curvature.terms._protocol import Terms, Tile
from laplace_metric.models.jacobians import HeadJacobian, Layer


class _Contraction(LayeredTerm):
    """H contracted with ``others``, one matrix a layer."""

    def __init__(self, head: HeadJacobian, n_rows: int, others: Sequence[Tensor]) -> None:
        super().__init__(head, n_rows)
        self.others = list(others)

    @property
    def given(self) -> list[Tensor]:
        return self.others

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        pairs = zip(self.layers(points), self.others, strict=True)
        return [
            2 * self._point_term(layer, blocks, other.to(layer.inputs)).double()
            for layer, other in pairs
        ]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        return self.terms(tile.number, self._class_term(sums.flatten(0, 1), tile))

    def pair_block(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        terms: Terms = []
        for x, y, other in zip(self.layers(rows), self.layers(columns), self.others, strict=True):
            l_i, l_j = x.factor.projected(rows.directions), y.factor.projected(columns.directions)
            sides = (l_i, x.inputs), (l_j, y.inputs)
            terms.append(self._pair_term(*sides, targets, other.to(x.inputs)).double())
        return terms

    @abstractmethod
    def _point_term(self, layer: Layer, blocks: PointBlocks, other: Tensor) -> Tensor: ...

    @abstractmethod
    def _class_term(self, g: Tensor, tile: Tile) -> Tensor:
        """Of rows g [c s, O, A]."""

    @abstractmethod
    def _pair_term(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], y: Tensor, other: Tensor
    ) -> Tensor: ...


class LeftContraction(_Contraction):
    """A [A, A] of each layer -> ``<H, A>`` [O, O] ([K, K] for a raw linear head)."""

    def zeros(self) -> list[Tensor]:
        return self.empty(*((o, o) for _, o, _ in self.shapes))

    def _point_term(self, layer: Layer, blocks: PointBlocks, other: Tensor) -> Tensor:
        a, m = layer.inputs, layer.factor
        q = ((a @ other) * a).sum(1)
        u, v = m.vjp(blocks.u), m.vjp(blocks.v)
        outer = u.mT @ (q[:, None] * v)
        return m.gram_sum(q * blocks.alpha, outer.shape[0]) + outer + outer.mT

    def _class_term(self, g: Tensor, tile: Tile) -> Tensor:
        flat = g.transpose(0, 1).flatten(1)  # [O, c s A]
        return flat @ (g @ self.others[tile.number]).transpose(0, 1).flatten(1).mT

    def _pair_term(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], y: Tensor, other: Tensor
    ) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        x = y * (a_i @ other @ a_j.mT)
        return l_i.flatten(0, 1).mT @ (x @ l_j.flatten(1)).view_as(l_i).flatten(0, 1)


class RightContraction(_Contraction):
    """S [O, O] of each layer -> ``<H, S>`` [A, A]."""

    def zeros(self) -> list[Tensor]:
        return self.empty(*((a, a) for _, _, a in self.shapes))

    def _point_term(self, layer: Layer, blocks: PointBlocks, other: Tensor) -> Tensor:
        a, m = layer.inputs, layer.factor
        u, v = m.vjp(blocks.u), m.vjp(blocks.v)
        q = blocks.alpha * m.gram_inner(other) + 2 * ((u @ other) * v).sum(1)
        return a.mT @ (q[:, None] * a)

    def _class_term(self, g: Tensor, tile: Tile) -> Tensor:
        return g.flatten(0, 1).mT @ (self.others[tile.number] @ g).flatten(0, 1)

    def _pair_term(
        self, row: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor], y: Tensor, other: Tensor
    ) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        inner = (l_i @ other).flatten(1) @ l_j.flatten(1).mT
        return a_i.mT @ ((y * inner) @ a_j)
