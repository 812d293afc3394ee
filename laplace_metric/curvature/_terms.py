"""Sums over points and pairs: a term defines the summands, a pass adds them up.

Every term is linear in the pair targets y and gives what is added up, in float64, of

    2 sum_i J_i^T T_i J_i / r_i^2  -  2 sum_ij y_ij J^_i^T J^_j

The second sum over all pairs of a class is a product of class sums, ``G_c = sum_{i in c} J^_i``,
so it is not a sum over points: G_c is, and is collected tile by tile before its products are taken.

``DiagonalTerm`` and ``DenseTerm`` know any head by its Jacobian. ``LayeredTerm`` sees linear
layers: for ``J_i = M_i (x) a_i^T`` the Jacobian of what the distance compares is

    J^_i = L_i (x) a_i^T / r_i,   L_i = (I - u_i u_i^T) M_i   [Z, O]

so its class sums are ``G_c[z, o, :] = sum_{i in c} L_i[z, o] a_i^T / r_i``: one product
[s O, n] x [n, A] for a tile of s rows z. What is kept of a layer's block of H is one of three:

    Diagonal     diag(H) [O, A]
    LeftOf(A)    <H, A> [O, O], of the cross term sum_z G_z A G_z^T
    RightOf(S)   <H, S> [A, A], of the cross term sum_z G_z^T S G_z

The last two are H rearranged to [O^2, A^2] (Van Loan and Pitsianis 1993), which maps a matrix over
inputs to one over outputs and back. No [P, P] array is formed, and none of pairs.

The loss that is differentiated: a distance in a space, a GGN approximation, a margin.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_name, check_positive
from laplace_metric.curvature._structures import KroneckerEigenbasis
from laplace_metric.curvature.by_class import (
    PointBlocks,
    Points,
    diagonal_sum,
    left_sum,
    right_sum,
    times,
    view_points,
)
from laplace_metric.errors import HeadError
from laplace_metric.heads._jacobian import HeadJacobian, Layer, LinearJacobian

Terms = list["Tensor | None"]
"""One for each total; None where there is nothing to add."""


def add_terms(totals: Iterable[Tensor], terms: Terms, scale: float = 1.0) -> None:
    """``totals += scale * terms``, in place."""
    for total, term in zip(totals, terms, strict=True):
        if term is not None:
            total.add_(term, alpha=scale)


@dataclass(frozen=True)
class Tile:
    """Some entries of every G_c: rows z and columns o of layer ``number``, and their shape.

    ``upper``: the tile is of a symmetric L, and begins at the diagonal.
    """

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, ...]
    upper: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes of one class in float64."""
        return 8 * math.prod(self.shape)


class JacobianTerm(ABC):
    """A term that knows the head by its Jacobian alone."""

    inputs: Sequence[Tensor] = ()
    """Tensors that the terms depend on, in addition to the head."""
    n_dimensions: int
    """Of the total, with P entries along each."""

    def __init__(self, head: HeadJacobian) -> None:
        self.head = head

    def __str__(self) -> str:
        return type(self).__name__

    def zeros(self) -> list[Tensor]:
        """Totals [float64] to begin with."""
        shape = (self.head.n_parameters,) * self.n_dimensions
        return [torch.zeros(shape, dtype=torch.float64, device=self.head.parameters.device)]

    @abstractmethod
    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        """``2 sum_i J_i^T T_i J_i / r_i^2``."""

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> Terms:
        """``-2 sum_ij y_ij J^_i^T J^_j`` for the block Y [n, m]."""
        z, (total,) = self.head.n_outputs, self.zeros()
        for j, right in self.head.jacobians(columns.features):
            right = normalized_projection(columns[j], z) @ right  # [m, Z, P]
            for i, left in self.head.jacobians(rows.features):
                left = normalized_projection(rows[i], z) @ left
                pulled = torch.einsum("ij,jzp->izp", targets[i, j], right)
                total.add_(self._product(left, pulled).double(), alpha=-2)
        return [total]

    def tiles(self) -> list[Tile]:
        """The pieces in which G_c is collected: all of it, as a backend gives whole rows."""
        z, everything = self.head.n_outputs, slice(None)
        return [Tile(0, everything, everything, (z, self.head.n_parameters))]

    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        """The tile of ``sum_i J^_i`` over these points, float64."""
        return self.head.vjp(points.features, normalized_projection(points, self.head.n_outputs))

    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        """Compute the contribution of ``sum_c G_c^T G_c``, for tiles of G_c [c, *tile.shape]."""
        return [self._product(sums, sums)]

    def _weighted(self, points: Points, blocks: PointBlocks) -> Float[Tensor, "n Z Z"]:
        """``B_i = 2 T_i / r_i^2``."""
        return 2 * blocks.dense(self.head.n_outputs) / points.lengths[:, :, None].square()

    @abstractmethod
    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """``sum_i X_i^T Y_i`` of X, Y [n, Z, P], or its diagonal."""


def normalized_projection(points: Points, n_outputs: int) -> Float[Tensor, "n Z Z"]:
    """``(I - u_i u_i^T) / r_i`` [n, Z, Z], which turns J_i into J^_i."""
    u = points.directions.expand(-1, n_outputs)
    identity = torch.eye(n_outputs, dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / points.lengths[:, :, None]


class DiagonalTerm(JacobianTerm):
    """``diag(sum J^T B J)`` [P] by the backend's own products."""

    n_dimensions = 1

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        return [self.head.diagonal(points.features, self._weighted(points, blocks))]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum((0, 1))


class DenseTerm(JacobianTerm):
    """``sum J^T B J`` [P, P] with J [n, Z, P] materialised block by block, O(N Z P^2)."""

    n_dimensions = 2

    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        b, (total,) = self._weighted(points, blocks), self.zeros()
        for part, j in self.head.jacobians(points.features):
            total += self._product(j, b[part] @ j).double()
        return [total]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return left.flatten(0, 1).mT @ right.flatten(0, 1)


class LinearDense(DenseTerm):
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
        folded = torch.arange(layout.n_parameters).view(layout.n_outputs, -1)
        order = layout.flatten(folded).to(a.device)
        return [value.flatten(2).flatten(0, 1)[order][:, order]]


Side = tuple[Tensor, Tensor]
"""L [n, Z, O] and a [n, A] of some points at one layer."""


@dataclass(frozen=True)
class Diagonal:
    """diag(H) of a layer, [O, A]."""

    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        """Shape of the total."""
        return n_outputs, n_columns

    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        """The sum over points, whose u and v M has pulled."""
        return diagonal_sum(pulled, layer)

    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        """``sum_c sum_z G_c[z, o, a]^2``."""
        squares = g[0].square()
        for rows in g[1:]:  # class by class: a tile fits the cache
            squares.addcmul_(rows, rows)
        term = squares.new_zeros(tile.columns.stop, squares.shape[-1])
        term[tile.columns] = squares.sum(0)
        if tile.upper:  # the entries left of the tile's columns, by symmetry
            term[tile.rows] += squares[:, tile.shape[0] :].sum(1)
        return term

    def pairs(self, row: Side, column: Side, y: Tensor) -> Tensor:
        """``sum_ij y_ij <L_i[:, o], L_j[:, o]> a_i a_j`` for each o, O(n^2 O (Z + A))."""
        (l_i, a_i), (l_j, a_j) = row, column
        by_output = [
            (((y * (l_i[:, :, o] @ l_j[:, :, o].mT)) @ a_j) * a_i).sum(0)
            for o in range(l_i.shape[2])
        ]
        return torch.stack(by_output)


@dataclass(frozen=True)
class LeftOf:
    """``<H, A>`` [O, O] of A [A, A], the diagonal [A] of one, or None for I.

    Of a raw linear head it is [K, K].
    """

    other: Tensor | None = None

    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        return n_outputs, n_outputs

    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        return left_sum(pulled, layer, None if self.other is None else self.other.to(layer.inputs))

    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        g = g.flatten(0, 1)
        return g.transpose(0, 1).flatten(1) @ self._times(g).transpose(0, 1).flatten(1).mT

    def pairs(self, row: Side, column: Side, y: Tensor) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        x = y * (self._times(a_i) @ a_j.mT)
        return l_i.flatten(0, 1).mT @ (x @ l_j.flatten(1)).view_as(l_i).flatten(0, 1)

    def _times(self, a: Tensor) -> Tensor:
        return a if self.other is None else times(a, self.other.to(a))


@dataclass(frozen=True)
class RightOf:
    """``<H, S>`` [A, A] of S [O, O]: the upper triangle of it."""

    other: Tensor

    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        return n_columns, n_columns

    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        return right_sum(pulled, layer, self.other.to(layer.inputs))

    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        g = g.flatten(0, 1)
        return g.flatten(0, 1).mT @ (self.other @ g).flatten(0, 1)

    def pairs(self, row: Side, column: Side, y: Tensor) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        inner = (l_i @ self.other.to(l_i)).flatten(1) @ l_j.flatten(1).mT
        return a_i.mT @ ((y * inner) @ a_j)


LayerSum = Diagonal | LeftOf | RightOf

TILE_BYTES = 4 * 2**20
"""Memory of one tile of one G_c; a larger head takes more passes, not more memory."""
PAIR_BYTES = 32 * 2**20
"""Memory of the arrays L [n, Z, O] of a block of pairs."""


class LayeredTerm:
    """Sums over linear layers, as they are or as ``J_i (Q_S (x) Q_A)``.

    Parameters
    ----------
    spherical : bool
        Whether the rows of the last layer differ: K = Z on the sphere, 1 raw.
    *sums : list of LayerSum
        One for each layer; several lists are summed in one pass.
    basis : KroneckerEigenbasis or None

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
        others = (getattr(part, "other", None) for parts in self.sums for part in parts)
        of_basis = [side for block in blocks for side in (block.left, block.right)]
        return [*of_basis, *(other for other in others if other is not None)]

    def zeros(self) -> list[Tensor]:
        shapes = [
            part.shape(o, a)
            for parts in self.sums
            for part, (_, o, a) in zip(parts, self.shapes, strict=True)
        ]
        return [torch.zeros(shape, dtype=torch.float64, device=self._device) for shape in shapes]

    def layers(self, points: Points) -> list[Layer]:
        """J_i / r_i of every layer."""
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
        upper = number == len(self.shapes) - 1 and isinstance(self.sums[-1][-1], Diagonal)
        step = max(1, TILE_BYTES // (8 * o * a))
        for start in range(0, z, step):
            rows = slice(start, min(start + step, z))
            first = start if upper else 0
            shape = (rows.stop - start, o - first, a)
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
        """Pieces of a block whose L [n, Z, O] fits ``PAIR_BYTES``, seen at each layer."""
        n_entries = max(z * o for z, o, _ in self.shapes)
        step = max(1, PAIR_BYTES // (points.directions.element_size() * n_entries))
        for start in range(0, len(points), step):
            part = slice(start, min(start + step, len(points)))
            u = points.directions[part]
            sides = [(x.factor.projected(u), x.inputs) for x in self.layers(points[part])]
            yield part, sides


CurvatureTerm = JacobianTerm | LayeredTerm
"""A sum over points and pairs, described by its terms; it holds no sum itself.

``inputs``, ``zeros``, ``points``, ``pairs``, ``tiles``, ``class_sum``, ``classes``: see
``JacobianTerm``.
"""


# The loss that is differentiated: a distance in a space, a GGN approximation, a margin.

SPHERE_DIAMETER = 2.0
DISTANCES = ("euclidean", "arccos")


@dataclass(frozen=True)
class Geometry:
    """A distance and the space it is measured in.

    Parameters
    ----------
    spherical : bool
        Directions are compared (an l2-normalised network, or the arccos distance).
    curved_loss : bool
        The normalisation belongs to the loss (arccos), so its second derivative counts.
    """

    name: str
    spherical: bool
    curved_loss: bool

    def points_of(
        self, head: HeadJacobian, features: Float[Tensor, "n D"], *, checked: bool = True
    ) -> Points:
        """Points of a head's inputs, in the type of the head where that is the longer one."""
        h = features.to(torch.promote_types(features.dtype, head.dtype))
        return view_points(h, head.forward(h), spherical=self.spherical, checked=checked)


RAW_EUCLIDEAN = Geometry("euclidean", spherical=False, curved_loss=False)
NORMALIZED_EUCLIDEAN = Geometry("euclidean on the sphere", spherical=True, curved_loss=False)
ARCCOS = Geometry("arccos", spherical=True, curved_loss=True)


APPROXIMATIONS = {"full": (True, True), "positives": (False, True), "fixed": (True, False)}
"""Which part of the Gauss-Newton matrix is kept (Warburg et al. 2023, F.3): negatives, cross.

Equations 98, 99, and 101-102.
"""


@dataclass(frozen=True)
class ContrastiveLoss:
    """Geometry x approximation x margin.

    Parameters
    ----------
    geometry : Geometry
    negatives : bool
        Whether negative pairs count.
    cross : bool
        Whether the blocks that couple the two points of a pair count.
    margin : float or None
        Negative pairs farther apart do not count.

    Examples
    --------
    >>> loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    >>> loss.negatives_by_class
    True
    """

    geometry: Geometry
    negatives: bool
    cross: bool
    margin: float | None = None

    @classmethod
    def of(
        cls, distance: str, hessian: str, *, normalized: bool, margin: float | None = None
    ) -> ContrastiveLoss:
        """From the public names; a margin that every pair of directions is inside becomes None.

        Parameters
        ----------
        normalized : bool
            Whether the network l2-normalises its output. Arccos sees directions only, so there it
            makes no difference.

        Raises
        ------
        UnknownNameError
            For names that do not exist.
        InputError
            For a margin that is no positive distance.
        """
        check_name("distance", distance, DISTANCES)
        check_name("hessian", hessian, APPROXIMATIONS)
        margin = None if margin is None else check_positive("margin", margin)
        space = NORMALIZED_EUCLIDEAN if normalized else RAW_EUCLIDEAN
        space = ARCCOS if distance == "arccos" else space
        if margin is not None and space.spherical and margin >= SPHERE_DIAMETER:
            margin = None
        negatives, cross = APPROXIMATIONS[hessian]
        return cls(space, negatives, cross, margin)

    @property
    def negatives_by_class(self) -> bool:
        """Every negative pair counts, so class sums are enough."""
        return self.negatives and self.margin is None

    @property
    def negatives_by_pair(self) -> bool:
        """Only negatives inside a finite margin count, so pairs must be looked at."""
        return self.negatives and self.margin is not None

    @property
    def cancels(self) -> bool:
        """True if terms of H cancel, so that they are summed in float64.

        With cross blocks, or without the second derivative of a distance on the sphere, H sees
        differences: of features, whose common part cancels (all of it for the bias of a raw
        head, an exact null direction), or of the weights w_i, whose sum is zero. What rounding
        leaves there, times n_effective, would rival the prior precision. Only ``fixed`` with
        ``arccos`` has neither.
        """
        return self.cross or not self.geometry.curved_loss

    @property
    def vanishes(self) -> bool:
        """Zero for balanced classes: fixed, without second derivative, every negative counted."""
        return self.negatives_by_class and not self.cross and not self.geometry.curved_loss
