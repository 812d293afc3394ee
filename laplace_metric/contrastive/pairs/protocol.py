"""A kind of pairs knows how to hand its points and pairs to any accumulator, again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from laplace_metric.contrastive.blocks import PointBlocks
from laplace_metric.contrastive.geometry import Points

Groups = Callable[[int], Iterator[Iterator[Points]]]
"""Rows a block -> for each class its points in blocks."""


class Accumulator(Protocol):
    """Sums ``2 sum_i J_i^T T_i J_i / r_i^2 - 2 sum_ij y_ij J^_i^T J^_j``, or products with it."""

    def points(self, points: Points, blocks: PointBlocks) -> None:
        """Add ``2 sum_i J_i^T T_i J_i / r_i^2``."""

    def classes(self, groups: Groups, within: float, between: float) -> None:
        """Subtract ``2 (within sum_c G_c^T G_c - between G^T G)``, G_c the class sums of J^."""

    def pairs(self, rows: Points, columns: Points, targets: Tensor) -> None:
        """Subtract ``2 sum_ij y_ij J^_i^T J^_j`` for the block Y [n, m]."""


class PairSource(Protocol):
    """Some pairs and their targets."""

    def feed(self, accumulator: Accumulator) -> None:
        """Hand everything over once."""


A = TypeVar("A", bound=Accumulator)


def feed_all(sources: Sequence[PairSource], accumulator: A) -> A:
    """Feed every source; returns the accumulator."""
    for source in sources:
        source.feed(accumulator)
    return accumulator
