"""diag(H) of layered heads, in parameter space or in the rotated space of a Kronecker basis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.curvature._geometry import PointBlocks, Points
from laplace_metric.curvature.structures import DiagCurvature
from laplace_metric.curvature.terms._layered import LayeredTerm
from laplace_metric.curvature.terms._protocol import Terms, Tile


class LayeredDiagonal(LayeredTerm):
    """``diag(H)``, or ``diag(Q^T H Q)`` with a Kronecker basis: the same sums of rotated layers."""

    upper = True

    @property
    def given(self) -> list[Tensor]:
        if self.basis is None:
            return []
        return [side for block in self.basis.blocks for side in (block.left, block.right)]

    def zeros(self) -> list[Tensor]:
        return self.empty(*(shape[1:] for shape in self.shapes))

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        """``(M^T T M)_oo = alpha (M^T M)_oo + 2 (M^T u)_o (M^T v)_o``: [O, n] x [n, A]."""
        terms: Terms = []
        for layer in self.layers(points):
            m = layer.factor
            gram = blocks.alpha[:, None] * m.gram_diagonal()
            rows = torch.addcmul(gram, m.vjp(blocks.u), m.vjp(blocks.v), value=2)
            terms.append(2 * (rows.mT @ layer.inputs.square()).double())
        return terms

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        """``sum_c sum_z G_c[z, o, a]^2``."""
        squares = sums[0].square()
        for g in sums[1:]:  # class by class: a slab fits the cache
            squares.addcmul_(g, g)
        term = torch.zeros(self.shapes[tile.number][1:], dtype=squares.dtype, device=squares.device)
        term[tile.columns] = squares.sum(0)
        if tile.number == len(self.shapes) - 1:  # the entries left of the slab's columns
            term[tile.rows] += squares[:, tile.shape[0] :].sum(1)  # by symmetry
        return self.terms(tile.number, term)

    def pair_block(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        """``sum_ij y_ij <L_i[:, o], L_j[:, o]> a_i a_j`` for each o, O(n^2 O (Z + A))."""
        terms: Terms = []
        for x, y in zip(self.layers(rows), self.layers(columns), strict=True):
            l_i, l_j = (
                layer.factor.projected(side.directions) for layer, side in ((x, rows), (y, columns))
            )
            by_output = [
                (((targets * (l_i[:, :, o] @ l_j[:, :, o].mT)) @ y.inputs) * x.inputs).sum(0)
                for o in range(l_i.shape[2])
            ]
            terms.append(torch.stack(by_output).double())
        return terms

    def result(self, totals: Sequence[Tensor]) -> DiagCurvature:
        """diag(H) [P], in parameter order (in the order of the basis, if there is one)."""
        parts = []
        for total, layout in zip(totals, self.head.layouts, strict=True):
            wide = total.expand(layout.n_outputs, -1)
            parts.append(layout.flatten(wide) if self.basis is None else wide.flatten())
        return DiagCurvature(torch.cat(parts))
