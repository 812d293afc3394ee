"""The two contractions of the Kronecker structure, and its refinement.

Rearranged to [O^2, A^2] (Van Loan and Pitsianis 1993), H maps a matrix over inputs to one over
outputs and back; of the cross term these are ``sum_z G_z A G_z^T`` and ``sum_z G_z^T S G_z``. No
[P, P] array is formed, and none of pairs.

In the basis ``Q_S (x) Q_A`` of a product, A is diagonal, so ``<H, A>`` takes no product of its own:
the rotation of the inputs by Q_A gives it with ``diag(Q^T H Q)``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from laplace_metric.curvature._statistics import Terms, mirrored
from laplace_metric.curvature.by_class import (
    PointBlocks,
    Points,
    diagonal_sum,
    left_sum,
    right_sum,
    times,
)
from laplace_metric.curvature.structures import DiagCurvature, KroneckerEigenbasis
from laplace_metric.curvature.terms._layered import LayeredDiagonal, LayeredTerm
from laplace_metric.curvature.terms._protocol import Tile
from laplace_metric.models.jacobians import HeadJacobian, Layer

Sided = tuple[Tensor, Tensor]
"""L [n, Z, O] and a [n, A] of some points."""


class _Contraction(LayeredTerm):
    """H contracted with ``others``, one matrix a layer (or its diagonal, or None for I)."""

    def __init__(
        self,
        head: HeadJacobian,
        n_rows: int,
        others: Sequence[Tensor | None],
        basis: KroneckerEigenbasis | None = None,
    ) -> None:
        super().__init__(head, n_rows, basis)
        self.others = list(others)

    @property
    def inputs(self) -> list[Tensor]:
        return [*super().inputs, *(other for other in self.others if other is not None)]

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        pairs = zip(self.layers(points), self.others, strict=True)
        return [self.layer_term(x, blocks.pulled(x.factor), other) for x, other in pairs]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        other = self.others[tile.number]
        return self.terms(tile.number, self._class_term(sums.flatten(0, 1), other))

    def pair_block(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        terms: Terms = []
        for x, y, other in zip(self.layers(rows), self.layers(columns), self.others, strict=True):
            l_i, l_j = x.factor.projected(rows.directions), y.factor.projected(columns.directions)
            sides = (l_i, x.inputs), (l_j, y.inputs)
            same = None if other is None else other.to(x.inputs)
            terms.append(self._pair_term(*sides, targets, same).double())
        return terms

    @abstractmethod
    def layer_term(self, layer: Layer, pulled: PointBlocks, other: Tensor | None) -> Tensor:
        """Of one layer, whose M has pulled u and v."""

    @abstractmethod
    def _class_term(self, g: Tensor, other: Tensor | None) -> Tensor:
        """Of rows g [c s, O, A]."""

    @abstractmethod
    def _pair_term(self, row: Sided, column: Sided, y: Tensor, other: Tensor | None) -> Tensor: ...


class LeftContraction(_Contraction):
    """A [A, A] of each layer -> ``<H, A>`` [O, O] ([K, K] for a raw linear head)."""

    def zeros(self) -> list[Tensor]:
        return self.empty(*((o, o) for _, o, _ in self.shapes))

    def layer_term(self, layer: Layer, pulled: PointBlocks, other: Tensor | None) -> Tensor:
        return left_sum(pulled, layer, None if other is None else other.to(layer.inputs))

    def _class_term(self, g: Tensor, other: Tensor | None) -> Tensor:
        flat = g.transpose(0, 1).flatten(1)  # [O, c s A]
        right = g if other is None else times(g, other)
        return flat @ right.transpose(0, 1).flatten(1).mT

    def _pair_term(self, row: Sided, column: Sided, y: Tensor, other: Tensor | None) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        x = y * ((a_i if other is None else times(a_i, other)) @ a_j.mT)
        return l_i.flatten(0, 1).mT @ (x @ l_j.flatten(1)).view_as(l_i).flatten(0, 1)


class RightContraction(_Contraction):
    """S [O, O] of each layer -> ``<H, S>`` [A, A], of which totals have the upper triangle."""

    def zeros(self) -> list[Tensor]:
        return self.empty(*((a, a) for _, _, a in self.shapes))

    def layer_term(self, layer: Layer, pulled: PointBlocks, other: Tensor | None) -> Tensor:
        assert other is not None
        return right_sum(pulled, layer, other.to(layer.inputs))

    def _class_term(self, g: Tensor, other: Tensor | None) -> Tensor:
        assert other is not None
        return g.flatten(0, 1).mT @ (other @ g).flatten(0, 1)

    def _pair_term(self, row: Sided, column: Sided, y: Tensor, other: Tensor | None) -> Tensor:
        assert other is not None
        (l_i, a_i), (l_j, a_j) = row, column
        inner = (l_i @ other).flatten(1) @ l_j.flatten(1).mT
        return a_i.mT @ ((y * inner) @ a_j)

    def result(self, totals: Sequence[Tensor]) -> list[Tensor]:
        """``<H, S>`` of each layer."""
        return [mirrored(total) for total in totals]


class KroneckerRefinement(LayeredTerm):
    """``diag(Q^T H Q)`` and ``Q_S^T <H, A> Q_S`` for ``A = Q_A diag(l) Q_A^T``.

    Parameters
    ----------
    basis : KroneckerEigenbasis
        ``Q = Q_S (x) Q_A`` of each layer.
    values : Sequence of Tensor [A]
        l of each layer.
    """

    def __init__(
        self,
        head: HeadJacobian,
        n_rows: int,
        basis: KroneckerEigenbasis,
        values: Sequence[Tensor],
    ) -> None:
        super().__init__(head, n_rows, basis)
        self.diagonal = LayeredDiagonal(head, n_rows, basis, upper=False)
        self.left = LeftContraction(head, n_rows, values, basis)

    @property
    def inputs(self) -> list[Tensor]:
        return self.left.inputs

    def zeros(self) -> list[Tensor]:
        return [*self.diagonal.zeros(), *self.left.zeros()]

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        terms: tuple[Terms, Terms] = [], []
        for layer, values in zip(self.layers(points), self.left.others, strict=True):
            pulled = blocks.pulled(layer.factor)
            terms[0].append(diagonal_sum(pulled, layer))
            terms[1].append(self.left.layer_term(layer, pulled, values))
        return [*terms[0], *terms[1]]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        return [*self.diagonal.classes(tile, sums), *self.left.classes(tile, sums)]

    def pair_block(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        blocks = rows, columns, targets
        return [*self.diagonal.pair_block(*blocks), *self.left.pair_block(*blocks)]

    def result(self, totals: Sequence[Tensor]) -> tuple[DiagCurvature, list[Tensor]]:
        """diag(Q^T H Q) [P] in the order of the basis, and ``Q_S^T <H, A> Q_S`` of each layer."""
        n_layers = len(self.shapes)
        return self.diagonal.result(totals[:n_layers]), list(totals[n_layers:])
