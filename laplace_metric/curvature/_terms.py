"""Sums over points and pairs: a term defines the summands, a pass adds them up.

Every term is linear in the pair targets y and gives terms, which are added up in float64, of

    2 sum_i J_i^T T_i J_i / r_i^2  -  2 sum_ij y_ij J^_i^T J^_j

The second sum over all pairs of a class is a product of class sums, ``G_c = sum_{i in c} J^_i``,
so it is not a sum over points: G_c is, and is collected tile by tile before its products are taken.

diag(H) of any head from its Jacobian backend.

H [P, P] in full: of a linear head from its structure, of any head from its Jacobian.

Terms of layered heads, and the diagonal.

For a layer ``J_i = M_i (x) a_i^T`` the Jacobian of what the distance compares is

    J^_i = L_i (x) a_i^T / r_i,   L_i = (I - u_i u_i^T) M_i   [Z, O]

so its class sums are ``G_c[z, o, :] = sum_{i in c} L_i[z, o] a_i^T / r_i``: one product
[s O, n] x [n, A] for a tile of s rows z. The sums over points are those of ``by_class``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._spectral import KroneckerEigenbasis
from laplace_metric.curvature._statistics import Terms, add_terms
from laplace_metric.curvature._sums import DiagCurvature, FullCurvature
from laplace_metric.curvature.by_class import PointBlocks, Points, diagonal_sum
from laplace_metric.errors import HeadError
from laplace_metric.heads._jacobian import HeadJacobian, LinearJacobian
from laplace_metric.heads._layers import Layer


@dataclass(frozen=True)
class Tile:
    """Some entries of every G_c: rows z and columns o of layer ``number``, and their shape."""

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of one class in float64."""
        size = 8
        for n in self.shape:
            size *= n
        return size


class CurvatureTerm(ABC):
    """A sum over points and pairs, described by its terms; it holds no sum itself."""

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors that the terms depend on, in addition to the head."""
        return []

    @abstractmethod
    def zeros(self) -> list[Tensor]:
        """Totals [float64] to begin with."""

    @abstractmethod
    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        """``2 sum_i J_i^T T_i J_i / r_i^2``."""

    @abstractmethod
    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        """``-2 sum_ij y_ij J^_i^T J^_j`` for the block Y [n, m]."""

    @abstractmethod
    def tiles(self) -> list[Tile]:
        """The pieces in which G_c is collected."""

    @abstractmethod
    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        """The tile of ``sum_i J^_i`` over these points, float64."""

    @abstractmethod
    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        """Compute the contribution of ``sum_c G_c^T G_c``, for tiles of G_c [c, *tile.shape]."""


def weighted_blocks(points: Points, blocks: PointBlocks, n_outputs: int) -> Float[Tensor, "n Z Z"]:
    """``B_i = 2 T_i / r_i^2`` [n, Z, Z]."""
    return 2 * blocks.dense(n_outputs) / points.lengths[:, :, None].square()


def normalized_projection(points: Points, n_outputs: int) -> Float[Tensor, "n Z Z"]:
    """``(I - u_i u_i^T) / r_i`` [n, Z, Z], which turns J_i into J^_i."""
    u = points.directions.expand(-1, n_outputs)
    identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / points.lengths[:, :, None]


class JacobianTerm(CurvatureTerm):
    """A term that knows the head by its Jacobian alone."""

    def __init__(self, head: HeadJacobian, n_rows: int) -> None:
        self.head, self.n_rows = head, n_rows

    def tiles(self) -> list[Tile]:
        """All of G [Z, P] at once: a backend gives whole rows."""
        z, everything = self.head.n_outputs, slice(None)
        return [Tile(0, everything, everything, (z, self.head.n_parameters))]

    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        return self.head.vjp(points.features, normalized_projection(points, self.head.n_outputs))

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        z, (total,) = self.head.n_outputs, self.zeros()
        for j, right in self.head.jacobians(columns.features):
            right = normalized_projection(columns[j], z) @ right  # [m, Z, P]
            for i, left in self.head.jacobians(rows.features):
                left = normalized_projection(rows[i], z) @ left
                pulled = torch.einsum("ij,jzp->izp", targets[i, j], right)
                total.add_(self._product(left, pulled).double(), alpha=-2)
        return [total]

    @abstractmethod
    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """``sum_i X_i^T Y_i`` of X, Y [n, Z, P], or its diagonal."""

    def empty(self, *shape: int) -> list[Tensor]:
        """Float64 zeros."""
        device = self.head.parameters.device
        return [torch.zeros(shape, dtype=torch.float64, device=device)]


class GeneralDiagonal(JacobianTerm):
    """``diag(sum J^T B J)`` by the backend's own products."""

    def zeros(self) -> list[Tensor]:
        return self.empty(self.head.n_parameters)

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        return [self.head.diagonal(points.features, b)]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        return [sums.square().sum((0, 1))]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum((0, 1))

    def result(self, totals: Sequence[Tensor]) -> DiagCurvature:
        """diag(H) [P] in parameter order."""
        return DiagCurvature(totals[0])


class GeneralDense(JacobianTerm):
    """``sum J^T B J`` with J [n, Z, P] materialised block by block, O(N Z P^2)."""

    def zeros(self) -> list[Tensor]:
        return self.empty(self.head.n_parameters, self.head.n_parameters)

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b = weighted_blocks(points, blocks, self.head.n_outputs)
        (total,) = self.zeros()
        for part, j in self.head.jacobians(points.features):
            total += self._product(j, b[part] @ j).double()
        return [total]

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        rows = sums.flatten(0, 1)
        return [rows.mT @ rows]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return left.flatten(0, 1).mT @ right.flatten(0, 1)

    def result(self, totals: Sequence[Tensor]) -> FullCurvature:
        """H, symmetric, in parameter order."""
        return FullCurvature((totals[0] + totals[0].mT) / 2)


class LinearDense(GeneralDense):
    """``T_i (x) a_i a_i^T`` of a linear head: Z^2/2 products [A, n] x [n, A], O(N P^2)."""

    head: LinearJacobian

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        layout, z = self.head.layout, self.head.n_outputs
        a = layout.augment(points.features) / points.lengths
        t = 2 * blocks.dense(z)
        value = torch.empty(z, a.shape[1], z, a.shape[1], dtype=torch.float64, device=a.device)
        for k in range(z):
            pulled = (t[:, k, : k + 1, None] * a[:, None, :]).flatten(1)  # [n, (k + 1) A]
            value[k, :, : k + 1] = (a.mT @ pulled).double().unflatten(1, (k + 1, -1))
            value[:k, :, k] = value[k, :, :k].transpose(0, 1)  # each [A, A] is symmetric
        return [self._in_parameter_order(value.flatten(2).flatten(0, 1))]

    def _in_parameter_order(self, matrix: Tensor) -> Tensor:
        layout = self.head.layout
        folded = torch.arange(layout.n_parameters).view(layout.n_outputs, -1)
        order = layout.flatten(folded).to(matrix.device)
        return matrix[order][:, order]


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
