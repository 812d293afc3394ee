"""The curvature term of a head that is a chain of linear layers: sums of each layer, in one pass.

The class sums of a layer are ``G_c[z, o, :] = sum_{i in c} L_i[z, o] a_i^T / r_i`` (``_layer_sums``
has L_i): one product [s O, n] x [n, A] for a tile of s rows z.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from laplace_metric._utils.blocks import CACHE_BYTES, blocks
from laplace_metric.curvature._curvature_term import CurvatureTerm, Tile
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis
from laplace_metric.curvature._layer_sums import LayerSum, Side
from laplace_metric.curvature._statistics import Terms, add_terms
from laplace_metric.curvature.by_class import PointBlocks, Points
from laplace_metric.errors import HeadError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layer import Layer

PROJECTED_BYTES = 2**25
"""Memory of the arrays L [n, Z, O] of one side of a block of pairs."""


@final
class LayeredTerm(CurvatureTerm):
    """Sums over linear layers, as they are or as ``J_i (Q_S (x) Q_A)``.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of a chain of linear layers.
    spherical : bool
        True on the sphere: the last layer has K = Z different rows. Raw, rows are equal (K = 1).
    *sums : list of LayerSum
        One sum for each layer; several lists are summed in one pass.
    basis : KroneckerEigenbasis or None
        Basis ``Q_S (x) Q_A`` of each layer in which the sums are taken; None: of the parameters.

    Raises
    ------
    HeadError
        If the head has no such structure.
    """

    def __init__(
        self,
        head: HeadJacobian,
        spherical: bool,
        *sums: Sequence[LayerSum],
        basis: KroneckerEigenbasis | None = None,
    ) -> None:
        if not head.layered:
            raise HeadError(
                f"{type(head).__name__} does not see the head as linear layers: use "
                "structure='diag' or 'full', or a head of linear layers with elementwise "
                "activations between them."
            )
        self.head, self.sums, self.basis = head, sums, basis
        self._device = head.parameters.device
        self._basis_as: KroneckerEigenbasis | None = None  # in the type of the points
        z = head.n_outputs
        shapes = [(z, x.n_outputs, x.n_columns) for x in head.layouts]
        k = z if spherical else 1
        self.shapes = [*shapes[:-1], (k, k, shapes[-1][2])]
        """(Z, O, A) of G for each layer; the last one has K rows and outputs."""

    def __str__(self) -> str:
        return " and ".join(type(parts[0]).__name__ for parts in self.sums)

    @property
    def inputs(self) -> list[Tensor]:
        blocks = () if self.basis is None else self.basis.blocks
        of_basis = [side for block in blocks for side in (block.left, block.right)]
        return [*of_basis, *(x for parts in self.sums for part in parts for x in part.inputs)]

    def zeros(self) -> list[Tensor]:
        shapes = [
            part.shape(o, a)
            for parts in self.sums
            for part, (_, o, a) in zip(parts, self.shapes, strict=True)
        ]
        return [torch.zeros(shape, dtype=torch.float64, device=self._device) for shape in shapes]

    def layers(self, points: Points) -> list[Layer]:
        """Return J_i / r_i of every layer."""
        layers = self.head.layers(points.features)
        if self.basis is not None:
            if (
                self._basis_as is None
                or self._basis_as.blocks[0].left.dtype != points.features.dtype
            ):
                self._basis_as = self.basis.to(points.features)
            pairs = zip(layers, self._basis_as.blocks, strict=True)
            layers = [layer.rotated(block.left, block.right) for layer, block in pairs]
        return [layer.divided(points.lengths) for layer in layers]

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        seen = [(layer, blocks.pulled(layer.factor)) for layer in self.layers(points)]
        terms: Terms = []
        for parts in self.sums:
            for part, (layer, pulled) in zip(parts, seen, strict=True):
                terms.append(part.points(layer, pulled))
        return terms

    def tiles(self) -> list[Tile]:
        return [tile for number in range(len(self.shapes)) for tile in self._layer_tiles(number)]

    def _layer_tiles(self, number: int) -> Iterator[Tile]:
        """Yield the tiles of a layer; a diagonal of the last needs only what is right of it."""
        z, o, a = self.shapes[number]
        upper = number == len(self.shapes) - 1 and self.sums[-1][-1].upper_tiles
        for rows in blocks(z, 8 * o * a, CACHE_BYTES):
            first = rows.start if upper else 0
            shape = (rows.stop - rows.start, o - first, a)
            yield Tile(number, rows, slice(first, o), shape, upper)

    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        layer = self.layers(points)[tile.number]
        left = layer.factor.projected(points.directions, tile.rows, tile.columns).flatten(1)
        return (left.mT @ layer.inputs).double().view(tile.shape)

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        return [
            part.classes(tile, sums) if number == tile.number else None
            for parts in self.sums
            for number, part in enumerate(parts)
        ]

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        totals = self.zeros()
        for i, some in self._chunks(rows):
            for j, others in self._chunks(columns):
                seen = list(zip(some, others, strict=True))
                terms = [
                    part.pairs(row, column, targets[i, j]).double()
                    for parts in self.sums
                    for part, (row, column) in zip(parts, seen, strict=True)
                ]
                add_terms(totals, [*terms], -2)
        return [*totals]

    def _chunks(self, points: Points) -> Iterator[tuple[slice, list[Side]]]:
        """Yield pieces whose L [n, Z, O] fits ``PROJECTED_BYTES``, and L, a at each layer."""
        n_entries = max(z * o for z, o, _ in self.shapes)
        row_bytes = points.directions.element_size() * n_entries
        for part in blocks(len(points), row_bytes, PROJECTED_BYTES):
            u = points.directions[part]
            sides = [(x.factor.projected(u), x.inputs) for x in self.layers(points[part])]
            yield part, sides
