"""The two contractions of the Kronecker structure, and its refinement.

Rearranged to [O^2, A^2] (Van Loan and Pitsianis 1993), H maps a matrix over inputs to one over
outputs and back; of the cross term these are ``sum_z G_z A G_z^T`` and ``sum_z G_z^T S G_z``. No
[P, P] array is formed, and none of pairs.

In the basis ``Q_S (x) Q_A`` of a product, A is diagonal, so ``<H, A>`` takes no product of its own:
the rotation of the inputs by Q_A gives it with ``diag(Q^T H Q)``.

The nearest Kronecker product ``S (x) A`` of the contrastive curvature, by power iteration.

``min |H - S (x) A|_F`` is the leading singular pair of the rearranged H (Van Loan and Pitsianis
1993); its power iteration alternates the two contractions of ``terms``

    S <- <H, A> / |<H, A>|        A <- <H, S>        from A = I, where <H, I> costs no product

The residual of a half step is known without forming H: ``|H - S (x) A|^2 = |H|^2 - |S (x) A|^2``,
so ``|A|`` and ``|<H, A>| / |A|`` can only grow, towards the leading singular value, and how much
they grow says when to stop. The pass that looks ahead, ``<H, A>``, also takes the exact
diag(Q^T H Q) in the eigenbasis of S (x) A, which replaces its eigenvalues (see ``structures``):
inputs that are rotated by Q_A give both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laplace_metric.curvature._passes import PassSchedule
from laplace_metric.curvature._spectral import KroneckerEigenbasis
from laplace_metric.curvature._statistics import Terms, mirrored
from laplace_metric.curvature._sums import DiagCurvature, KronCurvature, KroneckerFactors, balanced
from laplace_metric.curvature._terms import CurvatureTerm, LayeredDiagonal, LayeredTerm, Tile
from laplace_metric.curvature.by_class import (
    PointBlocks,
    Points,
    diagonal_sum,
    left_sum,
    right_sum,
    times,
)
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layers import Layer, Layout

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
            same = None if other is None else other.to(x.inputs)
            term = self._pair_term((l_i, x.inputs), (l_j, y.inputs), targets, same)
            terms.append(term.double())
        return terms

    @abstractmethod
    def layer_term(self, layer: Layer, pulled: PointBlocks, other: Tensor | None) -> Tensor:
        """Compute the term of one layer, whose M has pulled u and v."""

    @abstractmethod
    def _class_term(self, g: Tensor, other: Tensor | None) -> Tensor:
        """Compute the term of rows g [c s, O, A]."""

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
        left = self.left.pair_block(rows, columns, targets)
        return [*self.diagonal.pair_block(rows, columns, targets), *left]

    def result(self, totals: Sequence[Tensor]) -> tuple[DiagCurvature, list[Tensor]]:
        """diag(Q^T H Q) [P] in the order of the basis, and ``Q_S^T <H, A> Q_S`` of each layer."""
        n_layers = len(self.shapes)
        return self.diagonal.result(totals[:n_layers]), list(totals[n_layers:])


Totals = Callable[[CurvatureTerm], PassSchedule[list[Tensor]]]
"""A term over some pairs."""

MAX_STEPS = 30
TOLERANCE = 5e-4
"""Stop when the next half step would grow no layer's |S (x) A| by more than this share."""


def nearest_kronecker(
    totals: Totals, head: HeadJacobian, n_rows: int, *, refine: bool = True
) -> PassSchedule[KronCurvature]:
    """``S (x) A`` of each layer, refined by the exact diagonal in its eigenbasis.

    One step on trained heads for ``hessian="fixed"``, two with cross blocks; each takes two
    passes of O(N (A^2 + O^2)), of which one is half a symmetric product; with cross blocks
    O(N Z O A + C Z O A (O + A)) more, C the number of classes. Memory O(O^2 + A^2) and a tile.

    Parameters
    ----------
    n_rows : int
        K of the geometry; a raw linear head has K = 1 and ``S = s I``.
    """
    layouts = head.layouts
    left = yield from totals(LeftContraction(head, n_rows, [None] * len(layouts)))
    for _ in range(MAX_STEPS):
        left = [m / m.norm().clamp_min(torch.finfo(m.dtype).tiny) for m in left]
        to_right = RightContraction(head, n_rows, left)
        right = to_right.result((yield from totals(to_right)))
        factors = [_factors(s, a, x) for s, a, x in zip(left, right, layouts, strict=True)]
        product = KronCurvature(tuple(factors))
        basis, _ = product.eigenbasis()
        blocks = basis.blocks
        values = [_values(a, b.right) for a, b in zip(right, blocks, strict=True)]
        ahead = KroneckerRefinement(head, n_rows, basis, values)
        spectrum, seen = ahead.result((yield from totals(ahead)))
        sizes = [(s.norm().cpu(), a.norm().cpu()) for s, a in zip(seen, right, strict=True)]
        if all(bool(s <= (1 + TOLERANCE) * a.square()) for s, a in sizes):
            break
        left = [_turned_back(s, b.left) for s, b in zip(seen, blocks, strict=True)]
    return KronCurvature(product.factors, (basis, spectrum.values) if refine else None)


def _values(matrix: Tensor, basis: Tensor) -> Tensor:
    """diag(Q^T A Q) [A], of A's own eigenvectors: its eigenvalues, in their order."""
    return ((matrix @ basis) * basis).sum(0)


def _turned_back(seen: Tensor, basis: Tensor) -> Tensor:
    """``Q S~ Q^T``; a raw linear head's S [1, 1] is the same in every basis."""
    return seen if len(seen) < len(basis) else basis @ seen @ basis.mT


def _factors(left: Tensor, right: Tensor, layout: Layout) -> KroneckerFactors:
    """Equal norms; a raw linear head's S [1, 1] becomes s I."""
    if len(left) == 1 < layout.n_outputs:
        left = left * torch.eye(layout.n_outputs).to(left)
    return KroneckerFactors(*balanced(left, right), layout)
