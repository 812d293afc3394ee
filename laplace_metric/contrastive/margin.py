"""Negative pairs inside a finite margin: blocked products, exact or against a reference subset.

No class-sum form exists for "closer than the margin", so every pair has to be looked at once:
O(N^2 Z) for fixed, O(N^2 Z D) with the cross blocks, in products of blocks; no [N, N] array is
kept. Memory: coordinates [R, Z] of the R columns, and a few blocks.

With a reference subset of R of the N points as columns, every sum over j is estimated by N/R times
the sum over the subset. The curvature is linear in the targets, so the estimate is unbiased; its
standard error comes from ``GROUPS`` disjoint groups of the subset, with the finite-population
factor sqrt(1 - R/N).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

import torch
from torch import Tensor

from laplace_metric.contrastive.class_sums import point_diagonal
from laplace_metric.contrastive.geometry import Geometry, Points
from laplace_metric.contrastive.pair_blocks import cross_diagonal
from laplace_metric.contrastive.targets import inside_margin
from laplace_metric.errors import InputError
from laplace_metric.features import FeatureStore, block_rows
from laplace_metric.jacobians import LinearJacobian

GROUPS = 8
COLUMN_BLOCK = 4096


def negative_part(
    store: FeatureStore,
    head: LinearJacobian,
    geometry: Geometry,
    margin: float,
    negative_weight: float,
    *,
    cross: bool,
    columns: Tensor | None = None,
) -> Tensor:
    """Diagonal [K, D'] float64 of the in-margin negatives; ``columns`` [R] limits one side of each.

    The result is the plain sum over the given columns, not rescaled.
    """
    index = torch.arange(len(store), device=store.device) if columns is None else columns
    side = _Columns(store, head, geometry, margin, -negative_weight, index)
    value = side.point_term()
    return value + side.cross_term() if cross else value


def reference_part(
    store: FeatureStore,
    head: LinearJacobian,
    geometry: Geometry,
    margin: float,
    negative_weight: float,
    *,
    cross: bool,
    reference: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Unbiased estimate of ``negative_part`` from ``reference`` points, and its standard error.

    Raises
    ------
    InputError
        Unless ``2 * GROUPS <= reference <= N``.
    """
    n = len(store)
    if not 2 * GROUPS <= reference <= n:
        raise InputError(f"reference={reference}: choose from {2 * GROUPS} to N = {n} points.")
    size = reference // GROUPS
    chosen = torch.randperm(n, generator=generator)[: size * GROUPS].to(store.device)
    estimates = torch.stack(
        [
            negative_part(
                store,
                head,
                geometry,
                margin,
                negative_weight * n / size,
                cross=cross,
                columns=group,
            )
            for group in chosen.split(size)
        ]
    )
    spread = estimates.std(0) / GROUPS**0.5
    return estimates.mean(0), spread * max(0.0, 1 - size * GROUPS / n) ** 0.5


class _Columns:
    """One side of the pairs, held as coordinates; the other side comes by in blocks."""

    def __init__(
        self,
        store: FeatureStore,
        head: LinearJacobian,
        geometry: Geometry,
        margin: float,
        target: float,
        index: Tensor,
    ) -> None:
        self.store, self.head, self.geometry = store, head, geometry
        self.margin, self.target, self.index = margin, target, index
        self.labels = store.labels[index]
        kept = [self._seen(i) for i in index.split(self._column_rows())]
        self.coordinates = torch.cat([coordinates for coordinates, _ in kept])
        self.directions = torch.cat([directions for _, directions in kept])

    def _column_rows(self) -> int:
        return block_rows(self.head.weight.shape[1], 4, 2**26)

    def _points(self, index: Tensor) -> Points:
        h = self.store.rows(index)
        return self.geometry.points(self.head.augment(h), self.head.raw(h))

    def _seen(self, index: Tensor) -> tuple[Tensor, Tensor]:
        points = self._points(index)
        return points.coordinates, points.directions

    def _targets(self, points: Points, labels: Tensor, part: slice) -> Tensor:
        """Y [n, m]: -1/M for in-margin negatives, else 0."""
        inside = inside_margin(points.coordinates, self.coordinates[part], self.margin)
        inside &= labels[:, None] != self.labels[None, part]
        return inside.to(points.features.dtype).mul_(self.target)

    def point_term(self) -> Tensor:
        """diag(sum_i J_i^T B_i J_i) [K, D'] of all rows against all columns."""
        return reduce(add, (self._point_block(*rows) for rows in self._row_blocks()))

    def _point_block(self, points: Points, labels: Tensor) -> Tensor:
        weight = points.directions.new_zeros(len(points))
        pull = torch.zeros_like(points.directions)
        for start in range(0, len(self.index), COLUMN_BLOCK):
            part = slice(start, start + COLUMN_BLOCK)
            targets = self._targets(points, labels, part)
            weight += targets.sum(1)
            pull.addmm_(targets, self.directions[part])
        return point_diagonal(points, self.geometry, weight, pull)

    def cross_term(self) -> Tensor:
        """2 diag(sum_ij J_i^T C_ij J_j) [K, D'] over all rows and columns."""
        step = self._column_rows()
        return reduce(
            add,
            (
                self._cross_with(slice(start, start + step))
                for start in range(0, len(self.index), step)
            ),
        )

    def _cross_with(self, part: slice) -> Tensor:
        columns = self._points(self.index[part])
        return reduce(
            add,
            (
                cross_diagonal(points, columns, self._targets(points, labels, part))
                for points, labels in self._row_blocks()
            ),
        )

    def _row_blocks(self) -> Iterator[tuple[Points, Tensor]]:
        for rows, h in self.store.blocks():
            yield (
                self.geometry.points(self.head.augment(h), self.head.raw(h)),
                self.store.labels[rows],
            )
