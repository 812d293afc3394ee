"""Curvature terms: the summands over points and pairs that a pass adds up.

Every term is linear in the pair targets y and gives what is added up, in float64, of

    2 sum_i J_i^T T_i J_i / r_i^2  -  2 sum_ij y_ij J^_i^T J^_j

The second sum over all pairs of a class is a product of class sums, ``G_c = sum_{i in c} J^_i``,
so it is not a sum over points: G_c is, and is collected tile by tile before its products are taken.
A larger head takes more passes, not more memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from laplace_metric.curvature._statistics import Terms
from laplace_metric.curvature.by_class import PointBlocks, Points


@dataclass(frozen=True)
class Tile:
    """Some entries of every G_c.

    Parameters
    ----------
    number : int
        Number of the layer, from 0.
    rows, columns : slice
        Rows z and columns o of the layer's factor L that the tile covers.
    shape : tuple of int
        Shape of the tile of one class.
    upper : bool
        True if L is symmetric and the tile begins at the diagonal. Default: False.
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


class CurvatureTerm(ABC):
    """Summands of a sum over points and pairs; the totals of a pass hold the sum itself."""

    @abstractmethod
    def __str__(self) -> str:
        """Name what is summed: a part of the fingerprint of a pass."""

    @property
    @abstractmethod
    def inputs(self) -> Sequence[Tensor]:
        """Tensors that the term depends on, in addition to the head."""

    @abstractmethod
    def zeros(self) -> list[Tensor]:
        """Return zero totals, in float64: T of them, of any shapes."""

    @abstractmethod
    def points(self, points: Points, blocks: PointBlocks) -> Terms:
        """Compute ``2 sum_i J_i^T T_i J_i / r_i^2`` of n points, one summand for each total."""

    @abstractmethod
    def pairs(self, rows: Points, columns: Points, targets: Float[Tensor, "n m"]) -> Terms:
        """Compute ``-2 sum_ij y_ij J^_i^T J^_j`` of n rows, m columns and targets Y [n, m]."""

    @abstractmethod
    def tiles(self) -> list[Tile]:
        """Return tiles that cover G_c."""

    @abstractmethod
    def class_sum(self, tile: Tile, points: Points) -> Tensor:
        """Compute the tile of ``sum_i J^_i`` over these points, float64, of ``tile.shape``."""

    @abstractmethod
    def classes(self, tile: Tile, sums: Tensor) -> Terms:
        """Compute the contribution of ``sum_c G_c^T G_c``, for tiles [c, *tile.shape] of c classes.

        None stands for a total to which the tile does not contribute.
        """
