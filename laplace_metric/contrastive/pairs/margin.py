"""Negative pairs inside a finite margin: blocked products, exact or against a reference subset.

No class-sum form exists for "closer than the margin", so every pair has to be looked at once:
O(N^2 Z) for fixed, O(N^2 Z D) with the cross blocks, in products of blocks; no [N, N] array is
kept. Memory: coordinates [R, Z] of the R columns, and a few blocks.

With a reference subset of R of the N points as columns, every sum over j is estimated by N/R times
the sum over the subset. The curvature is linear in the targets, so the estimate is unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from laplace_metric.contrastive.geometry import Geometry, Points
from laplace_metric.contrastive.pairs.protocol import Accumulator
from laplace_metric.contrastive.targets import inside_margin
from laplace_metric.errors import InputError
from laplace_metric.features import FeatureStore, block_rows
from laplace_metric.jacobians import HeadJacobian

GROUPS = 8
COLUMN_BLOCK = 4096


def reference_columns(n: int, reference: int, generator: torch.Generator | None) -> list[Tensor]:
    """``GROUPS`` disjoint random groups of together about ``reference`` of n points.

    Raises
    ------
    InputError
        Unless ``2 * GROUPS <= reference <= n``.
    """
    if not 2 * GROUPS <= reference <= n:
        raise InputError(f"reference={reference}: choose from {2 * GROUPS} to N = {n} points.")
    size = reference // GROUPS
    return list(torch.randperm(n, generator=generator)[: size * GROUPS].split(size))


class MarginPairs:
    """In-margin negatives between all points and some columns (None: all), target ``-weight``."""

    def __init__(
        self,
        store: FeatureStore,
        head: HeadJacobian,
        geometry: Geometry,
        margin: float,
        weight: float,
        *,
        cross: bool,
        columns: Tensor | None = None,
    ) -> None:
        self.store, self.head, self.geometry = store, head, geometry
        self.margin, self.target, self.cross = margin, -weight, cross
        index = torch.arange(len(store)) if columns is None else columns
        self.index = index.to(store.device)
        self.labels = store.labels[self.index]

    @cached_property
    def _seen(self) -> tuple[Tensor, Tensor]:
        """Coordinates [R, Z] and directions [R, K] of the columns."""
        kept = [self._points(i) for i in self.index.split(self._column_rows())]
        coordinates = torch.cat([points.coordinates for points in kept])
        return coordinates, torch.cat([points.directions for points in kept])

    def feed(self, accumulator: Accumulator) -> None:
        """Points with their in-margin sums first, then, if wanted, the pairs themselves."""
        for points, labels in self._row_blocks():
            weight, pull = self._sums(points, labels)
            blocks = self.geometry.point_blocks(points.directions, weight, pull)
            accumulator.points(points, blocks)
        if self.cross:
            self._feed_pairs(accumulator)

    def _sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        """w [n] and m [n, K] against all columns."""
        weight = points.directions.new_zeros(len(points))
        pull = torch.zeros_like(points.directions)
        for start in range(0, len(self.index), COLUMN_BLOCK):
            part = slice(start, start + COLUMN_BLOCK)
            targets = self._targets(points, labels, part)
            weight += targets.sum(1)
            pull.addmm_(targets, self._seen[1][part])
        return weight, pull

    def _feed_pairs(self, accumulator: Accumulator) -> None:
        step = self._column_rows()
        for start in range(0, len(self.index), step):
            part = slice(start, start + step)
            columns = self._points(self.index[part])
            for points, labels in self._row_blocks():
                accumulator.pairs(points, columns, self._targets(points, labels, part))

    def _targets(self, points: Points, labels: Tensor, part: slice) -> Tensor:
        """Y [n, m]: -weight for in-margin negatives, else 0."""
        inside = inside_margin(points.coordinates, self._seen[0][part], self.margin)
        inside &= labels[:, None] != self.labels[None, part]
        return inside.to(points.directions.dtype).mul_(self.target)

    def _column_rows(self) -> int:
        return block_rows(self.head.layouts[0].n_columns, 4, 2**26)

    def _points(self, index: Tensor) -> Points:
        h = self.store.rows(index)
        return self.geometry.points(h, self.head.raw(h))

    def _row_blocks(self) -> Iterator[tuple[Points, Tensor]]:
        for rows, h in self.store.blocks():
            yield self.geometry.points(h, self.head.raw(h)), self.store.labels[rows]
