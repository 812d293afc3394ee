"""Pair weights of negative pairs inside a finite margin: blocked products, exact or estimated.

No class-sum form exists for "closer than the margin", so every pair has to be computed once:
O(N R Z) for R columns, O(N R Z D) with the cross blocks, in products of blocks; no [N, R] array is
stored. Memory: coordinates and directions of the columns, 2 [R, Z].

The columns are all points (exact, R = N), or a reference subset: then every sum over j is estimated
by N/R times the sum over the subset. The curvature is linear in the targets, so the estimate is
unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._margin_columns import MarginColumns
from laplace_metric.curvature.by_class import ClassSums, Points, pair_counts
from laplace_metric.errors import InputError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.models._store import FeatureStore, block_rows

GROUPS = 8
COLUMN_BYTES = 64 * 2**20
"""Memory of the features of columns, and of the targets of pairs, at once for cross blocks."""


def column_groups(n: int, structure: str, reference: int, seed: Seed = None) -> list[Tensor]:
    """Draw about ``reference`` random indices of n points.

    For the diagonal they are in ``GROUPS`` disjoint groups, whose spread gives the standard error.

    Raises
    ------
    InputError
        Unless ``2 * GROUPS <= reference <= n``.
    """
    if not 2 * GROUPS <= reference <= n:
        raise InputError(f"reference={reference}: choose from {2 * GROUPS} to N = {n} points.")
    size = reference // GROUPS
    drawn = torch.randperm(n, generator=as_generator(seed))[: size * GROUPS]
    return list(drawn.split(size if structure == "diag" else len(drawn)))


@dataclass(frozen=True)
class MarginPairWeights:
    """Weights of in-margin negatives between all points and some columns.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head, which computes the embeddings.
    loss : ContrastiveLoss
        Loss with a finite margin.
    columns : FeatureStore
        R points that stand for all N.
    class_sums : ClassSums
        Class sums of all N points.
    """

    head: HeadJacobian
    loss: ContrastiveLoss
    columns: FeatureStore
    class_sums: ClassSums

    def __str__(self) -> str:
        return f"inside the margin {self.loss.margin}, cross={self.loss.cross}"

    def tensors(self) -> list[Tensor]:
        columns = self.view
        return [columns.labels, columns.order, *columns.moments]

    @cached_property
    def weight(self) -> float:
        """Weight of a pair inside the margin, ``-(1/M) N/R``."""
        scale = self.class_sums.n_points / len(self.columns)
        _, negative = pair_counts(self.class_sums.counts)
        return -scale * (1 / negative if negative else 0.0)

    @cached_property
    def view(self) -> MarginColumns:
        """Coordinates, directions and labels of the columns."""
        parts = [self._points(block.features) for block in self.columns.blocks()]
        coordinates = torch.cat([points.coordinates for points in parts])
        if self.loss.geometry.curved_loss:
            directions = torch.cat([points.directions for points in parts])
        else:  # only counts are needed
            directions = coordinates.new_zeros(len(coordinates), 1)
        margin = float(self.loss.margin or 0)
        return MarginColumns(coordinates, directions, self.columns.labels, margin)

    def prepare(self) -> None:
        _ = self.weight, self.view

    def sums(self, points: Points, labels: Tensor) -> tuple[Tensor, Tensor]:
        count, pull = self.view.sums(points.coordinates, labels)
        dtype = points.features.dtype
        w, m = (self.weight * count).to(dtype), (self.weight * pull).to(dtype)
        return w, m if self.loss.geometry.curved_loss else m[:, :0]

    def pairs(self, points: Points, labels: Tensor) -> Iterator[tuple[Points, Tensor]]:
        if not self.loss.cross:
            return
        size = points.features.element_size()
        step = block_rows(max(self.head.layouts[0].n_columns, len(points)), size, COLUMN_BYTES)
        for start in range(0, len(self.columns), step):
            part = slice(start, start + step)
            columns = self._points(self.columns.rows(self.view.order[part]))
            yield columns, self.view.inside(points.coordinates, labels, part).mul_(self.weight)

    def _points(self, features: Tensor) -> Points:
        return self.loss.geometry.points_of(self.head, features, checked=False)
