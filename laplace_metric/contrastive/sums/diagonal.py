"""diag(H) of layered heads, in parameter space or in the rotated space of a Kronecker basis."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from laplace_metric.contrastive.blocks import PointBlocks
from laplace_metric.contrastive.geometry import Points
from laplace_metric.contrastive.pairs.protocol import Groups
from laplace_metric.contrastive.sums.layered import chunks, class_sum_slabs, slab_shapes, view
from laplace_metric.curvature import DiagonalSum, KroneckerBasis
from laplace_metric.jacobians import HeadJacobian


class LayeredDiagonal:
    """``diag(H)``, or ``diag(Q^T H Q)`` with a Kronecker basis: the same sums of rotated layers.

    Parameters
    ----------
    n_rows : int
        K of the geometry (``Geometry.n_rows``).
    """

    def __init__(
        self, head: HeadJacobian, n_rows: int, basis: KroneckerBasis | None = None
    ) -> None:
        self.head, self.basis = head, basis
        self.layers = view(head, basis)
        self.shapes = slab_shapes(head, n_rows)
        self.totals: list[Tensor] = [torch.zeros((), dtype=torch.float64) for _ in head.layouts]

    def points(self, points: Points, blocks: PointBlocks) -> None:
        """``(M^T T M)_oo = alpha (M^T M)_oo + 2 (M^T u)_o (M^T v)_o``: [O, n] x [n, A]."""
        for number, layer in enumerate(self.layers(points)):
            m = layer.factor
            gram = blocks.alpha[:, None] * m.gram_diagonal()
            rows = torch.addcmul(gram, m.pull_back(blocks.u), m.pull_back(blocks.v), value=2)
            self._add(number, 2 * (rows.mT @ layer.inputs.square()).double())

    def classes(self, groups: Groups, within: float, between: float) -> None:
        """``sum_z G[z, o, a]^2`` over class sums, O(N Z O A)."""
        for number, shape in enumerate(self.shapes):
            last = number == len(self.shapes) - 1  # where L is symmetric
            for rows, sums in class_sum_slabs(self.layers, groups, number, shape, upper=last):
                inner = _signed_squares(sums, within, between)
                term = torch.zeros(shape[1:], dtype=torch.float64, device=inner.device)
                term[shape[1] - inner.shape[1] :] = inner.sum(0)
                if last:  # the entries left of the slab's columns, by symmetry
                    term[rows] += inner[:, rows.stop - rows.start :].sum(1)
                self._add(number, -2 * term)

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> None:
        """``sum_ij y_ij <L_i[:, o], L_j[:, o]> a_i a_j`` for each o, O(n^2 O (Z + A))."""
        n_entries = max(z * o for z, o, _ in self.shapes)
        for i, some in chunks(rows, n_entries):
            for j, others in chunks(columns, n_entries):
                self._pair_block(some, others, targets[i, j])

    def _pair_block(self, rows: Points, columns: Points, targets: Tensor) -> None:
        for number, (x, y) in enumerate(zip(self.layers(rows), self.layers(columns), strict=True)):
            l_i, l_j = (
                layer.factor.projected(side.directions) for layer, side in ((x, rows), (y, columns))
            )
            term = [
                (((targets * (l_i[:, :, o] @ l_j[:, :, o].mT)) @ y.inputs) * x.inputs).sum(0)
                for o in range(l_i.shape[2])
            ]
            self._add(number, -2 * torch.stack(term).double())

    def _add(self, number: int, term: Tensor) -> None:
        """Add a [K or O, A] term to layer ``number``."""
        self.totals[number] = self.totals[number] + term

    def result(self) -> DiagonalSum:
        """diag(H) [P], in parameter order (in the order of the basis, if there is one)."""
        parts = []
        for total, layout in zip(self.totals, self.head.layouts, strict=True):
            wide = total.expand(layout.n_outputs, -1)
            parts.append(layout.flatten(wide) if self.basis is None else wide.flatten())
        return DiagonalSum(torch.cat(parts))


def _signed_squares(sums: Iterator[Tensor], within: float, between: float) -> Tensor:
    """``within sum_c G_c^2 - between (sum_c G_c)^2``, elementwise."""
    total = next(sums)
    squares = total.square()
    for g in sums:
        squares.addcmul_(g, g)
        total.add_(g)
    return squares.mul_(within).addcmul_(total, total, value=-between)
