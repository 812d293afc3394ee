"""Terms of layered heads, and the diagonal.

For a layer ``J_i = M_i (x) a_i^T`` the Jacobian of what the distance compares is

    J^_i = L_i (x) a_i^T / r_i,   L_i = (I - u_i u_i^T) M_i   [Z, O]

so its class sums are ``G_c[z, o, :] = sum_{i in c} L_i[z, o] a_i^T / r_i``: one product
[s O, n] x [n, A] for a tile of s rows z. The sums over points are those of ``by_class``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from laplace_metric.curvature._statistics import Terms, add_terms
from laplace_metric.curvature.by_class import PointBlocks, Points, diagonal_sum
from laplace_metric.curvature.structures import DiagCurvature, KroneckerEigenbasis
from laplace_metric.curvature.terms._protocol import CurvatureTerm, Tile
from laplace_metric.errors import HeadError
from laplace_metric.models.jacobians import HeadJacobian, Layer

TILE_BYTES = 4 * 2**20
"""Memory of one tile of one G_c; a larger head takes more passes, not more memory."""
PAIR_BYTES = 32 * 2**20
"""Memory of the arrays L [n, Z, O] of a block of pairs."""


class LayeredTerm(CurvatureTerm):
    """A term that sees the head as linear layers, as they are or as ``J_i (Q_S (x) Q_A)``.

    Parameters
    ----------
    n_rows : int
        K of the geometry (``Geometry.n_rows``).
    basis : KroneckerEigenbasis or None
    upper : bool
        Whether of the last layer, where L is symmetric, the columns from a tile's first row on
        do.

    Raises
    ------
    HeadError
        If the head has no such structure.
    """

    def __init__(
        self,
        head: HeadJacobian,
        n_rows: int,
        basis: KroneckerEigenbasis | None = None,
        *,
        upper: bool = False,
    ) -> None:
        if not head.layered:
            raise HeadError(
                f"{type(head).__name__} does not see the head as linear layers: use "
                "structure='diag' or 'full', or a head of linear layers with elementwise "
                "activations between them."
            )
        self.head, self.n_rows, self.basis, self.upper = head, n_rows, basis, upper
        self._basis_as: KroneckerEigenbasis | None = None  # in the type of the points

    @property
    def inputs(self) -> list[Tensor]:
        if self.basis is None:
            return []
        return [side for block in self.basis.blocks for side in (block.left, block.right)]

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """(Z, O, A) of G for each layer; the last one has K rows and outputs."""
        layouts = self.head.layouts
        shapes = [(self.head.n_outputs, x.n_outputs, x.n_columns) for x in layouts]
        return [*shapes[:-1], (self.n_rows, self.n_rows, shapes[-1][2])]

    def layers(self, points: Points) -> list[Layer]:
        """J_i / r_i of every layer."""
        layers = self.head.layers(points.features) or []
        if self.basis is not None:
            pairs = zip(layers, self._basis_like(points.features).blocks, strict=True)
            layers = [layer.rotated(block.left, block.right) for layer, block in pairs]
        return [layer.divided(points.lengths) for layer in layers]

    def _basis_like(self, features: Tensor) -> KroneckerEigenbasis:
        """The basis in the type of the points, of which there is one a pass."""
        assert self.basis is not None
        if self._basis_as is None or self._basis_as.blocks[0].left.dtype != features.dtype:
            self._basis_as = self.basis.to(features)
        return self._basis_as

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


class LayeredDiagonal(LayeredTerm):
    """``diag(H)``, or ``diag(Q^T H Q)`` with a Kronecker basis: the same sums of rotated layers."""

    def __init__(
        self,
        head: HeadJacobian,
        n_rows: int,
        basis: KroneckerEigenbasis | None = None,
        *,
        upper: bool = True,
    ) -> None:
        super().__init__(head, n_rows, basis, upper=upper)

    def zeros(self) -> list[Tensor]:
        return self.empty(*(shape[1:] for shape in self.shapes))

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        return [diagonal_sum(blocks.pulled(x.factor), x) for x in self.layers(points)]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        """``sum_c sum_z G_c[z, o, a]^2``."""
        squares = sums[0].square()
        for g in sums[1:]:  # class by class: a tile fits the cache
            squares.addcmul_(g, g)
        term = torch.zeros(self.shapes[tile.number][1:], dtype=squares.dtype, device=squares.device)
        term[tile.columns] = squares.sum(0)
        if self.upper and tile.number == len(self.shapes) - 1:
            # the entries left of the tile's columns, by symmetry
            term[tile.rows] += squares[:, tile.shape[0] :].sum(1)
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
