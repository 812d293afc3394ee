"""PairWeights of negative pairs inside a finite margin: blocked products, exact or estimated.

No class-sum form exists for "closer than the margin", so every pair has to be looked at once:
O(N R Z) for R columns, O(N R Z D) with the cross blocks, in products of blocks; no [N, R] array is
kept. Memory: coordinates and directions of the columns, 2 [R, Z].

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
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.curvature._terms import ContrastiveLoss
from laplace_metric.curvature.by_class import ClassPairWeights, ClassSums, Points, pair_counts
from laplace_metric.errors import InputError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.models._store import FeatureStore, block_rows

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


@dataclass(frozen=True)
class MarginPairWeights:
    """In-margin negatives between all points and some columns.

    Parameters
    ----------
    columns : FeatureStore
        R points that stand for all N.
    class_sums : ClassSums
        Of all N points.
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
        """``-(1/M) N/R``."""
        scale = self.class_sums.n_points / len(self.columns)
        _, negative = pair_counts(self.class_sums.counts)
        return -scale * (1 / negative if negative else 0.0)

    @cached_property
    def view(self) -> MarginColumns:
        """The columns as the margin sees them."""
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


PairWeights = ClassPairWeights | MarginPairWeights
"""The weights y_ij of one kind of pairs, as the points of a block see them.

``prepare``: what is computed once. ``sums``: w_i [n] and m_i [n, K], [n, 0] where the geometry does
not need it. ``pairs``: (columns, Y [n, m]) of pairs that must be looked at one by one. ``tensors``:
what the weights depend on, apart from the class sums.
"""


CPU_BLOCK = (1024, 512)
"""Rows and columns of a block on a CPU: 2 MiB in float32, products at full rate."""

DEVICE_BLOCK = (4096, 8192)
"""Elsewhere: few launches. Both numbers of columns are below 2**24, so float32 counts are exact."""


class MarginColumns:
    """R points as columns, ready to be compared with any rows.

    Parameters
    ----------
    coordinates : Tensor [R, Z]
        f, what the distance compares; R >= 1.
    directions : Tensor [R, K]
        u, what is summed. All zero (the raw geometry): only counts cost anything.
    labels : Tensor [R] int64
        In any order.
    margin : float
        m, positive and finite.

    Attributes
    ----------
    order : Tensor [R] int64
        Which of the given columns stands at which place of the order by class.
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
        """Shift and scale coordinates [n, Z] of which nobody else has the memory."""
        return coordinates.sub_(self._centre).div_(self._unit)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Sums of the coordinates and of their squares [Z] float64: who the columns are."""
        blocks = [block.double() for block in self._coordinates.split(4096)]
        return sum(b.sum(0) for b in blocks), sum(b.square().sum(0) for b in blocks)

    def sums(self, coordinates: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """count [n] and pull [n, K] of rows with coordinates [n, Z] and labels [n], in float64."""
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
        """1 for in-margin negatives, else 0: [n, m] against the columns ``order[part]``."""
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
        columns = self._coordinates[part].T
        close = torch.addmm(self._offset[part], rows, columns, out=out).ge_(thresholds)
        return close.masked_fill_(labels[:, None] == self.labels[part], 0)

    def _thresholds(self, rows: Tensor) -> Tensor:
        """|f_i|^2/2 - m^2/2 [n, 1]."""
        return _half_squares(rows).sub_(self._half_square)[:, None]


def _half_squares(points: Tensor) -> Tensor:
    """|f|^2/2 [n] of points [n, Z], in blocks: no array of their size."""
    return torch.cat([block.square().sum(1) for block in points.split(4096)]).mul_(0.5)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of two blocks to a float64 total: summed in float64 beyond the block."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


# PairWeights of a miner's tuples: a dense symmetric Y [B, B] of one batch.


INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


def mined_pair_weights(
    indices: Any,
    coordinates: Float[Tensor, "B Z"],
    margin: float | None = None,
    *,
    negatives: bool = True,
) -> Float[Tensor, "B B"]:
    """Symmetric targets Y [B, B] of pytorch-metric-learning miner tuples.

    Pairs are ``(a1, p, a2, n)``, triplets ``(a, p, n)`` (as pairs (a, p) and (a, n)). A pair that
    is listed twice counts twice, in the sums and in P and M alike. Y is symmetrised, since a pair
    acts on both of its points. Without ``negatives`` only positive pairs get a target.

    Raises
    ------
    InputError
        If there are not three or four index vectors that fit.

    Examples
    --------
    >>> triplet = tuple(torch.tensor([i]) for i in (0, 1, 2))
    >>> mined_pair_weights(triplet, torch.eye(3))
    tensor([[ 0.0000,  0.5000, -0.5000],
            [ 0.5000,  0.0000,  0.0000],
            [-0.5000,  0.0000,  0.0000]])
    """
    a1, p, a2, n = _checked(indices, coordinates)
    targets = coordinates.new_zeros(len(coordinates), len(coordinates))
    if len(p):
        targets.index_put_((a1, p), targets.new_tensor(1 / len(p)), accumulate=True)
    if len(n) and negatives:
        negative = targets.new_full((len(n),), -1 / len(n))
        if margin is not None:
            gap = torch.linalg.vector_norm(coordinates[a2] - coordinates[n], dim=1)
            negative = negative * (gap <= margin)
        targets.index_put_((a2, n), negative, accumulate=True)
    return (targets + targets.mT) / 2


def _checked(indices: Any, points: Tensor) -> tuple[Tensor, ...]:
    """``(a1, p, a2, n)`` on the device of the points, of which each index names one."""
    if not isinstance(indices, (tuple, list)) or len(indices) not in (3, 4):
        kind = type(indices).__name__
        what = f"{len(indices)} index vectors" if isinstance(indices, (tuple, list)) else kind
        raise InputError(
            f"indices_tuple has {what}: pass (anchor, positive, negative) or (anchor1, positive, "
            "anchor2, negative) as pytorch-metric-learning's miners do."
        )
    for index in indices:
        if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype not in INDEX_TYPES:
            shown = f"{index.dtype} tensor" if isinstance(index, Tensor) else type(index).__name__
            raise InputError(
                f"indices_tuple holds a {shown}: a miner returns tensors [n] of whole numbers."
            )
    a1, p, *rest = (index.to(points.device, torch.int64) for index in indices)
    a2, n = rest if len(rest) == 2 else (a1, *rest)
    if len(a1) != len(p) or len(a2) != len(n):
        lengths = [len(index) for index in indices]
        raise InputError(f"indices_tuple has vectors of lengths {lengths}: pairs need equal ones.")
    together = torch.cat([a1, p, a2, n])
    if len(together) and not 0 <= int(together.min()) <= int(together.max()) < len(points):
        raise InputError(
            f"indices_tuple runs from {int(together.min())} to {int(together.max())}: the batch "
            f"has the rows 0 to {len(points) - 1}."
        )
    return a1, p, a2, n
