"""What the summands of layered heads share: scaled layers and slabs of class sums.

For a layer ``J_i = M_i (x) a_i^T`` the Jacobian of what the distance compares is

    J^_i = L_i (x) a_i^T / r_i,   L_i = (I - u_i u_i^T) M_i   [Z, O]

so its class sums are ``G_c[z, o, :] = sum_{i in c} L_i[z, o] a_i^T / r_i``: one product
[s O, n] x [n, A] for a slab of s rows z.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from laplace_metric.curvature._geometry import Points
from laplace_metric.curvature.structures import KroneckerEigenbasis
from laplace_metric.curvature.terms._protocol import CurvatureTerm, Terms, Tile, add_terms
from laplace_metric.errors import HeadError
from laplace_metric.models.jacobians import HeadJacobian, Layer

TILE_BYTES = 4 * 2**20
"""Memory of one slab of one G_c; a larger head takes more passes, not more memory."""
PAIR_BYTES = 32 * 2**20
"""Memory of the arrays L [n, Z, O] of a block of pairs."""


class LayeredTerm(CurvatureTerm):
    """A summand that sees the head as linear layers, as they are or as ``J_i (Q_S (x) Q_A)``.

    Parameters
    ----------
    n_rows : int
        K of the geometry (``Geometry.n_rows``).

    Raises
    ------
    HeadError
        If the head has no such structure.
    """

    upper = False
    """Whether of the last layer, where L is symmetric, the columns from the slab's first row on do.
    """

    def __init__(
        self, head: HeadJacobian, n_rows: int, basis: KroneckerEigenbasis | None = None
    ) -> None:
        if not head.layered:
            raise HeadError(
                f"{type(head).__name__} does not see the head as linear layers: use "
                "structure='diag' or 'full', or a head of linear layers with elementwise "
                "activations between them."
            )
        self.head, self.n_rows, self.basis = head, n_rows, basis

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """(Z, O, A) of G for each layer; the last one has K rows and outputs."""
        layouts = self.head.layouts
        shapes = [(self.head.n_outputs, x.n_outputs, x.n_columns) for x in layouts]
        return [*shapes[:-1], (self.n_rows, self.n_rows, shapes[-1][2])]

    def layers(self, points: Points) -> list[Layer]:
        """J_i / r_i of every layer."""
        found = self.head.layers(points.features) or []
        if self.basis is not None:
            pairs = zip(found, self.basis.to(points.features).blocks, strict=True)
            found = [layer.rotated(block.left, block.right) for layer, block in pairs]
        return [layer.divided(points.lengths) for layer in found]

    def empty(self, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Float64 zeros of these shapes."""
        device = self.head.parameters.device
        return [torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes]

    def tiles(self) -> list[Tile]:
        return [tile for number in range(len(self.shapes)) for tile in self._layer_tiles(number)]

    def _layer_tiles(self, number: int) -> Iterator[Tile]:
        z, o, a = self.shapes[number]
        step = max(1, TILE_BYTES // (8 * o * a))
        for start in range(0, z, step):
            rows = slice(start, min(start + step, z))
            first = start if self.upper and number == len(self.shapes) - 1 else 0
            shape = (rows.stop - start, o - first, a)
            yield Tile(number, rows, slice(first, o), shape)

    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        layer = self.layers(points)[tile.number]
        left = layer.factor.projected(points.directions, tile.rows, tile.columns).flatten(1)
        return (left.mT @ layer.inputs).double().view(tile.shape)

    def terms(self, number: int, term: Tensor) -> list[Tensor | None]:
        """A term of one layer, nothing of the others."""
        return [term if i == number else None for i in range(len(self.shapes))]

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        totals = self.zeros()
        for i, some in self.pair_chunks(rows):
            for j, others in self.pair_chunks(columns):
                add_terms(totals, self.pair_block(some, others, targets[i, j]), -2)
        return list(totals)

    @abstractmethod
    def pair_block(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        """``sum_ij y_ij J^_i^T J^_j`` of a block whose L [n, Z, O] fit ``PAIR_BYTES``."""

    def pair_chunks(self, points: Points) -> Iterator[tuple[slice, Points]]:
        """Pieces of a block whose L [n, Z, O] fits ``PAIR_BYTES``."""
        n_entries = max(z * o for z, o, _ in self.shapes)
        step = max(1, PAIR_BYTES // (points.directions.element_size() * n_entries))
        for start in range(0, len(points), step):
            part = slice(start, min(start + step, len(points)))
            yield part, points[part]
