"""What is summed over points and pairs: a term says the terms, a pass adds them up.

Every term is linear in the pair targets y and gives terms, which are added up in float64, of

    2 sum_i J_i^T T_i J_i / r_i^2  -  2 sum_ij y_ij J^_i^T J^_j

The second sum over all pairs of a class is a product of class sums, ``G_c = sum_{i in c} J^_i``,
so it is no sum over points: G_c is, and is collected tile by tile before its products are taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from laplace_metric.curvature._statistics import Terms
from laplace_metric.curvature.by_class import PointBlocks, Points


@dataclass(frozen=True)
class Tile:
    """Some entries of every G_c: rows z and columns o of layer ``number``, and their shape."""

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Of one class, float64."""
        size = 8
        for n in self.shape:
            size *= n
        return size


class CurvatureTerm(ABC):
    """A sum over points and pairs, described by its terms; it holds no sum itself."""

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors that the terms depend on, beside the head."""
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
        """What ``sum_c G_c^T G_c`` contributes, for tiles of G_c [c, *tile.shape]."""
