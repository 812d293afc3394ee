"""Targets y_ij of one kind of pairs, as seen by the points of a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from laplace_metric.contrastive.geometry import Points


class Targets(Protocol):
    """``w_i = sum_j y_ij`` and ``m_i = sum_j y_ij u_j``, and pairs for cross blocks, if any."""

    def prepare(self) -> None:
        """Compute what is computed once, before any point is read."""

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        """w [n] and m [n, K] (m [n, 0] where the geometry does not need it)."""

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        """(columns, Y [n, m]) of pairs that must be looked at one by one."""

    def given(self) -> list[Tensor]:
        """Tensors that the targets depend on, beside the class sums."""
