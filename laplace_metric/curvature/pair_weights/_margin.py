"""PairWeights of negative pairs inside a finite margin: blocked products, exact or estimated.

No class-sum form exists for "closer than the margin", so every pair has to be looked at once:
O(N R Z) for R columns, O(N R Z D) with the cross blocks, in products of blocks; no [N, R] array is
kept. Memory: coordinates and directions of the columns, 2 [R, Z].

The columns are all points (exact, R = N), or a reference subset: then every sum over j is estimated
by N/R times the sum over the subset. The curvature is linear in the targets, so the estimate is
unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.curvature._loss import Geometry
from laplace_metric.curvature._statistics import ClassSums
from laplace_metric.curvature.by_class import PairCounts, Points
from laplace_metric.curvature.pair_weights._margin_columns import MarginColumns
from laplace_metric.errors import InputError
from laplace_metric.models.features import FeatureSource, block_rows
from laplace_metric.models.jacobians import HeadJacobian

GROUPS = 8
COLUMN_BYTES = 64 * 2**20
"""Features of the columns, and targets of the pairs, that are held at once for cross blocks."""


def column_groups(n: int, structure: str, reference: int, generator: Seed = None) -> list[Tensor]:
    """About ``reference`` random indices of n points.

    For the diagonal they are in ``GROUPS`` disjoint groups, whose spread gives the standard error.

    Raises
    ------
    InputError
        Unless ``2 * GROUPS <= reference <= n``.
    """
    if not 2 * GROUPS <= reference <= n:
        raise InputError(f"reference={reference}: choose from {2 * GROUPS} to N = {n} points.")
    size = reference // GROUPS
    drawn = torch.randperm(n, generator=as_generator(generator))[: size * GROUPS]
    return list(drawn.split(size if structure == "diag" else len(drawn)))


class PairWeights(Protocol):
    """The weights y_ij of one kind of pairs, as the points of a block see them."""

    def prepare(self) -> None:
        """Compute what is computed once, before any point is read."""

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        """``w_i`` [n] and ``m_i`` [n, K] ([n, 0] where the geometry does not need it)."""

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        """(columns, Y [n, m]) of pairs that must be looked at one by one."""

    def tensors(self) -> list[Tensor]:
        """What the weights depend on, beside the class sums."""


@dataclass(frozen=True)
class MarginPairWeights:
    """In-margin negatives between all points and some columns.

    Parameters
    ----------
    columns : FeatureSource
        R points that stand for all N.
    whole : ClassSums
        Of all N points.
    cross : bool
        Whether pairs are wanted one by one.
    """

    head: HeadJacobian
    geometry: Geometry
    columns: FeatureSource
    class_sums: ClassSums
    margin: float
    cross: bool

    def __str__(self) -> str:
        return f"inside the margin {self.margin}, cross={self.cross}"

    def tensors(self) -> list[Tensor]:
        columns = self.view
        return [columns.labels, columns.order, *columns.moments]

    @cached_property
    def weight(self) -> float:
        """``-(1/M) N/R``."""
        scale = self.class_sums.n_points / len(self.columns)
        return -scale * PairCounts.of(self.class_sums.counts).negative_weight

    @cached_property
    def view(self) -> MarginColumns:
        """The columns as the margin sees them."""
        parts = [self._points(block.features) for block in self.columns.blocks()]
        coordinates = torch.cat([points.coordinates for points in parts])
        if self.geometry.curved_loss:
            directions = torch.cat([points.directions for points in parts])
        else:  # only counts are needed
            directions = coordinates.new_zeros(len(coordinates), 1)
        return MarginColumns(coordinates, directions, self.columns.labels, self.margin)

    def prepare(self) -> None:
        _ = self.weight, self.view

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        count, pull = self.view.sums(points.coordinates, labels)
        dtype = points.features.dtype
        w, m = (self.weight * count).to(dtype), (self.weight * pull).to(dtype)
        return w, m if self.geometry.curved_loss else m[:, :0]

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        if not self.cross:
            return
        size = points.features.element_size()
        step = block_rows(max(self.head.layouts[0].n_columns, len(points)), size, COLUMN_BYTES)
        for start in range(0, len(self.columns), step):
            part = slice(start, start + step)
            columns = self._points(self.columns.rows(self.view.order[part]))
            yield columns, self.view.inside(points.coordinates, labels, part).mul_(self.weight)

    def _points(self, features: Tensor) -> Points:
        return self.geometry.points_of(self.head, features, checked=False)
