"""What is kept of a layer's block of H: its diagonal, or its product with a matrix on one side.

For ``J_i = M_i (x) a_i^T`` the Jacobian of what the distance compares is

    J^_i = L_i (x) a_i^T / r_i,   L_i = (I - u_i u_i^T) M_i   [Z, O]

and the block of H of the layer is one of three:

    Diagonal     diag(H) [O, A]
    LeftOf(A)    <H, A> [O, O], of the cross term sum_z G_z A G_z^T
    RightOf(S)   <H, S> [A, A], of the cross term sum_z G_z^T S G_z

The last two are H rearranged to [O^2, A^2] (Van Loan and Pitsianis 1993), which maps a matrix over
inputs to one over outputs and back. No [P, P] array is formed, and none of pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._curvature_term import Tile
from laplace_metric.curvature.by_class import PointBlocks, diagonal_sum, left_sum, right_sum, times
from laplace_metric.heads._layer import Layer

Side = tuple[Tensor, Tensor]
"""L [n, Z, O] and a [n, A] of n points at one layer."""


class LayerSum(ABC):
    """One sum over points and pairs, of shape ``shape``, of the block of H of a layer."""

    upper_tiles: bool = False
    """True if, where L is symmetric, tiles may begin at the diagonal."""

    @property
    def inputs(self) -> Sequence[Tensor]:
        """Tensors that the sum depends on, in addition to the layer."""
        return ()

    @abstractmethod
    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        """Return the shape of the total."""

    @abstractmethod
    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        """Compute the sum over points, whose u and v were multiplied by M^T."""

    @abstractmethod
    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        """Compute the sum over c classes, for s rows of their G_c."""

    @abstractmethod
    def pairs(self, row: Side, column: Side, y: Float[Tensor, "n m"]) -> Tensor:
        """Compute the sum over the pairs of n and of m points, of targets Y."""


@final
@dataclass(frozen=True)
class Diagonal(LayerSum):
    """diag(H) of a layer, [O, A]."""

    upper_tiles = True

    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        return n_outputs, n_columns

    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        return diagonal_sum(pulled, layer)

    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        """Compute ``sum_c sum_z G_c[z, o, a]^2``."""
        squares = g[0].square()
        for rows in g[1:]:  # class by class: a tile fits the cache
            squares.addcmul_(rows, rows)
        term = squares.new_zeros(tile.columns.stop, squares.shape[-1])
        term[tile.columns] = squares.sum(0)
        if tile.upper:  # the entries left of the tile's columns, by symmetry
            term[tile.rows] += squares[:, tile.shape[0] :].sum(1)
        return term

    def pairs(self, row: Side, column: Side, y: Tensor) -> Tensor:
        """Compute ``sum_ij y_ij <L_i[:, o], L_j[:, o]> a_i a_j`` for each o, O(n^2 O (Z + A))."""
        (l_i, a_i), (l_j, a_j) = row, column
        # one output at a time: <L_i[:, o], L_j[:, o]> of all pairs is [n, m], of all o too much
        by_output = [
            (((y * (l_i[:, :, o] @ l_j[:, :, o].mT)) @ a_j) * a_i).sum(0)
            for o in range(l_i.shape[2])
        ]
        return torch.stack(by_output)


@final
@dataclass(frozen=True)
class LeftOf(LayerSum):
    """``<H, A>`` [O, O] of A [A, A], the diagonal [A] of one, or None for I.

    Of a raw linear head it is [K, K].
    """

    other: Tensor | None = None

    @property
    def inputs(self) -> Sequence[Tensor]:
        return () if self.other is None else (self.other,)

    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        return n_outputs, n_outputs

    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        return left_sum(pulled, layer, None if self.other is None else self.other.to(layer.inputs))

    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        # sum_z G_z A G_z^T with z over rows of all classes: one product [O, z A] x [z A, O]
        g = g.flatten(0, 1)
        return g.transpose(0, 1).flatten(1) @ self._times(g).transpose(0, 1).flatten(1).mT

    def pairs(self, row: Side, column: Side, y: Tensor) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        # x_ij = y_ij a_i^T A a_j [n, m]; the sum over j first, [n, m] x [m, Z O], then that over i
        # and z at once, [O, n Z] x [n Z, O]: no array has both points and two outputs
        x = y * (self._times(a_i) @ a_j.mT)
        return l_i.flatten(0, 1).mT @ (x @ l_j.flatten(1)).view_as(l_i).flatten(0, 1)

    def _times(self, a: Tensor) -> Tensor:
        return a if self.other is None else times(a, self.other.to(a))


@final
@dataclass(frozen=True)
class RightOf(LayerSum):
    """``<H, S>`` [A, A] of S [O, O]: the upper triangle of it."""

    other: Tensor

    @property
    def inputs(self) -> Sequence[Tensor]:
        return (self.other,)

    def shape(self, n_outputs: int, n_columns: int) -> tuple[int, int]:
        return n_columns, n_columns

    def points(self, layer: Layer, pulled: PointBlocks) -> Tensor:
        return right_sum(pulled, layer, self.other.to(layer.inputs))

    def classes(self, tile: Tile, g: Float[Tensor, "c s O A"]) -> Tensor:
        # sum_z G_z^T S G_z with z over rows of all classes: one product [A, z O] x [z O, A]
        g = g.flatten(0, 1)
        return g.flatten(0, 1).mT @ (self.other @ g).flatten(0, 1)

    def pairs(self, row: Side, column: Side, y: Tensor) -> Tensor:
        (l_i, a_i), (l_j, a_j) = row, column
        # <L_i S, L_j> [n, m] by [n, Z O] x [Z O, m]; then the pairs by [A, n] x [n, m] x [m, A]
        inner = (l_i @ self.other.to(l_i)).flatten(1) @ l_j.flatten(1).mT
        return a_i.mT @ ((y * inner) @ a_j)
