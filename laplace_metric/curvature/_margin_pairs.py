"""Pair weights of negative pairs inside a finite margin: blocked products, exact or estimated.

No class-sum form exists for "closer than the margin", so every pair has to be computed once:
O(N R Z) for R columns, O(N R Z D) with the cross blocks, in products of blocks; no [N, R] array is
stored. Memory: coordinates and directions of the columns, 2 [R, Z].

The columns are all points (exact, R = N), or a reference subset: then every sum over j is estimated
by N/R times the sum over the subset. The curvature is linear in the targets, so the estimate is
unbiased.

In-margin negatives of many points against fixed columns, at the speed of a matrix product.

With coordinates f, directions u, labels c and a margin m, for every row i and columns j

    inside_ij = [ c_j != c_i ] [ |f_i - f_j| <= m ]
              = [ c_j != c_i ] [ <f_i, f_j> - |f_j|^2/2 >= |f_i|^2/2 - m^2/2 ]
    count_i   = sum_j inside_ij                pull_i = sum_j inside_ij u_j

The second form is one product with an offset per column, compared in place with a threshold per
row; the pull is a second product. A block of [rows, columns] is small enough to stay in a CPU's
cache between the two.

Columns are held, and their directions summed, in the order of their classes.

Coordinates are shifted to the columns' mean and divided by a power of two near their spread: no
distance changes, and squares neither cancel more than they must nor overflow. The mean is cut to
a coarse binary grid, so that coordinates on such a grid (integers, say) stay exact. A distance
within rounding of the margin may fall on either side; where the arithmetic is exact, equality is
inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, LEAST_ROWS, blocks
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature.by_class import ClassSums, PairWeights, Points, pair_counts
from laplace_metric.errors import InputError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.models._feature_store import FeatureStore

CPU_BLOCK = (1024, 512)
"""Rows and columns of a block on a CPU: 2 MiB in float32, products at full rate."""
DEVICE_BLOCK = (4096, 8192)
"""Elsewhere: few launches. Both numbers of columns are below 2**24, so float32 counts are exact."""


class MarginColumns:
    """R points as columns, ready to be compared with any rows.

    Parameters
    ----------
    coordinates : Tensor [R, Z]
        Coordinates f that the distance compares; R >= 1.
    directions : Tensor [R, K]
        Vectors u that are summed. If all are zero (the raw geometry), they are left out.
    labels : Tensor [R] int64
        Class of each column, in any order.
    margin : float
        Margin m of the loss, positive and finite.

    Attributes
    ----------
    order : Tensor [R] int64
        Row of the given columns that stands at each place of the order by class.
    labels : Tensor [R] int64
        The labels in that order.

    Notes
    -----
    Keeps ``R (Z + K + 1)`` numbers of the coordinates' dtype and ``2 R`` integers; without
    directions ``R (Z + 1)``. TF32 products would blur the margin: leave them off (the default).

    Examples
    --------
    >>> f = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    >>> columns = MarginColumns(f, f, torch.tensor([7, 2, 7]), margin=5.0)
    >>> count, pull = columns.sums(f, torch.tensor([7, 2, 7]))
    >>> count  # the pair (0, 1) is at distance 5, (1, 2) closer, (0, 2) of one class
    tensor([1., 2., 1.], dtype=torch.float64)
    >>> pull
    tensor([[3., 4.],
            [0., 1.],
            [3., 4.]], dtype=torch.float64)
    >>> columns.order
    tensor([1, 0, 2])
    >>> columns.inside(f, torch.tensor([7, 2, 7]), slice(0, 2))
    tensor([[1., 0.],
            [0., 1.],
            [1., 0.]])
    """

    def __init__(
        self, coordinates: Tensor, directions: Tensor, labels: Tensor, margin: float
    ) -> None:
        coordinates, directions = coordinates.detach(), directions.detach()
        self.labels, self.order = torch.sort(labels, stable=True)
        low, high = torch.aminmax(coordinates, dim=0)
        spread = float((high.double() - low.double()).max())
        self._unit = 2.0 ** (math.frexp(max(spread, margin))[1] - 1)  # not far below the margin
        mean = coordinates.mean(0, dtype=torch.float64)
        self._centre = (mean - mean.fmod(self._unit / 16)).to(coordinates.dtype)
        self._half_square = (margin / self._unit) ** 2 / 2
        self._coordinates = self._place(coordinates.index_select(0, self.order))
        self._offset = _half_squares(self._coordinates).neg_()
        self._n_rows = directions.shape[1]
        # [K, R]: the second product is fastest as [K, m] x [m, n], in float64 twice as fast
        some = bool(directions.any())
        self._directions = directions.T.index_select(1, self.order) if some else None

    def _place(self, coordinates: Tensor) -> Tensor:
        """Shift and scale coordinates [n, Z] in place: pass a copy."""
        return coordinates.sub_(self._centre).div_(self._unit)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Sums of the coordinates and their squares, [Z] float64: a fingerprint of the columns."""
        blocks = [block.double() for block in self._coordinates.split(4096)]
        return sum(b.sum(0) for b in blocks), sum(b.square().sum(0) for b in blocks)

    def sums(self, coordinates: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return count [n] and pull [n, K] of rows: coordinates [n, Z], labels [n]. Float64."""
        rows = self._place(coordinates.detach().clone())
        count = rows.new_zeros(len(rows), dtype=torch.float64)
        pull = rows.new_zeros(self._n_rows, len(rows), dtype=torch.float64)
        n, m = CPU_BLOCK if rows.device.type == "cpu" else DEVICE_BLOCK
        room = rows.new_empty(min(n, len(rows)), min(m, len(self.labels)))
        for i in range(0, len(rows), n):
            some = slice(i, i + n)
            thresholds = self._thresholds(rows[some])
            for j in range(0, len(self.labels), m):
                part = slice(j, min(j + m, len(self.labels)))
                out = room.view(-1)[: len(thresholds) * (part.stop - j)]
                out = out.view(len(thresholds), part.stop - j)
                inside = self._inside(rows[some], thresholds, labels[some], part, out)
                count[some] += inside.sum(1)
                if self._directions is not None:
                    _add_product(pull[:, some], self._directions[:, part], inside.T)
        return count, pull.T.contiguous()

    def inside(self, coordinates: Tensor, labels: Tensor, part: slice) -> Tensor:
        """Return [n, m] against the columns ``order[part]``: 1 for in-margin negatives, else 0."""
        rows = self._place(coordinates.detach().clone())
        return self._inside(rows, self._thresholds(rows), labels, part)

    def _inside(
        self,
        rows: Tensor,
        thresholds: Tensor,
        labels: Tensor,
        part: slice,
        out: Tensor | None = None,
    ) -> Tensor:
        # <f_i, f_j> - |f_j|^2/2 >= |f_i|^2/2 - m^2/2: one product [n, Z] x [Z, m], in place
        columns = self._coordinates[part].T
        close = torch.addmm(self._offset[part], rows, columns, out=out).ge_(thresholds)
        return close.masked_fill_(labels[:, None] == self.labels[part], 0)

    def _thresholds(self, rows: Tensor) -> Tensor:
        """Return |f_i|^2/2 - m^2/2 [n, 1]."""
        return _half_squares(rows).sub_(self._half_square)[:, None]


def _half_squares(points: Tensor) -> Tensor:
    """Return |f|^2/2 [n] of points [n, Z], in blocks: no array of their size is needed."""
    return torch.cat([block.square().sum(1) for block in points.split(4096)]).mul_(0.5)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of two blocks to a float64 total: summed in float64 beyond the block."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


GROUPS = 8


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


@final
@dataclass(frozen=True)
class MarginPairWeights(PairWeights):
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
        # of a column: its features, and its targets
        n_numbers = max(self.head.layouts[0].n_columns, len(points))
        row_bytes = n_numbers * points.features.element_size()
        for part in blocks(len(self.columns), row_bytes, LARGE_BYTES, LEAST_ROWS):
            columns = self._points(self.columns.rows(self.view.order[part]))
            yield columns, self.view.inside(points.coordinates, labels, part).mul_(self.weight)

    def _points(self, features: Tensor) -> Points:
        return self.loss.geometry.points_of(self.head, features, checked=False)
