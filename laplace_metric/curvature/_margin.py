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

Rows and columns are sorted by class. A column block then holds a range of classes, and its rows of
those classes are a range too: only there can a pair be positive. A block of a single class needs
no comparison of labels (those rows become 0), and none at all where all its rows are of that class.
The label work is at most two blocks of columns per row, however many classes there are.

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
from laplace_metric.curvature._loss import Geometry
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
    whole : ClassSums
        Of all N points.
    cross : bool
        Whether pairs are wanted one by one.
    """

    head: HeadJacobian
    geometry: Geometry
    columns: FeatureStore
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
        _, negative = pair_counts(self.class_sums.counts)
        return -scale * (1 / negative if negative else 0.0)

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


@dataclass(frozen=True)
class _Span:
    """A block of columns, and the rows ``first:stop`` whose class may occur in it."""

    columns: slice
    first: int
    stop: int
    single: bool

    def within(self, start: int, n_rows: int) -> _Span:
        """The same for the ``n_rows`` rows from ``start`` on, counted from there."""
        first, stop = (min(max(i - start, 0), n_rows) for i in (self.first, self.stop))
        return _Span(self.columns, first, stop, self.single)

    def all_positive(self, n_rows: int) -> bool:
        """Return whether every pair of these rows and columns is of one class."""
        return self.single and self.first == 0 and self.stop == n_rows


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
        labels, order = torch.sort(labels)
        rows = self._place(coordinates.detach().index_select(0, order))
        count = rows.new_zeros(len(rows), dtype=torch.float64)
        pull = rows.new_zeros(self._n_rows, len(rows), dtype=torch.float64)
        n_rows, n_columns = self._block(len(rows))
        spans, room = list(self._spans(labels, n_columns)), rows.new_empty(n_rows * n_columns)
        for start in range(0, len(rows), n_rows):
            part = slice(start, start + n_rows)
            inner = [span.within(start, len(rows[part])) for span in spans]
            self._add(rows[part], labels[part], inner, room, count[part], pull[:, part])
        back = torch.argsort(order)
        return count[back], pull.T.index_select(0, back)

    def inside(self, coordinates: Tensor, labels: Tensor, part: slice) -> Tensor:
        """1 for in-margin negatives, else 0: [n, m] against the columns ``order[part]``."""
        rows = self._place(coordinates.detach().clone())
        close = self._close(rows, self._thresholds(rows), part)
        return close.masked_fill_(labels[:, None] == self.labels[part], 0)

    def _add(
        self,
        rows: Tensor,
        labels: Tensor,
        spans: list[_Span],
        room: Tensor,
        count: Tensor,
        pull: Tensor,
    ) -> None:
        """Add a block of sorted rows against all columns to count [n] and pull [K, n]."""
        n, thresholds = len(rows), self._thresholds(rows)
        for span in spans:
            if span.all_positive(n):
                continue
            m = span.columns.stop - span.columns.start
            inside = self._close(rows, thresholds, span.columns, room[: n * m].view(n, m))
            self._drop_positives(inside, labels, span)
            count += inside.sum(1)
            if self._directions is not None:
                _add_product(pull, self._directions[:, span.columns], inside.T)

    def _close(
        self, rows: Tensor, thresholds: Tensor, part: slice, out: Tensor | None = None
    ) -> Tensor:
        """1 where |f_i - f_j| <= m, else 0: [n, m]."""
        columns = self._coordinates[part].T
        return torch.addmm(self._offset[part], rows, columns, out=out).ge_(thresholds)

    def _drop_positives(self, inside: Tensor, labels: Tensor, span: _Span) -> None:
        """Set the pairs of one class to 0."""
        if span.first == span.stop:
            return
        rows = slice(span.first, span.stop)
        if span.single:
            inside[rows].zero_()
        else:
            inside[rows].masked_fill_(labels[rows, None] == self.labels[span.columns], 0)

    def _thresholds(self, rows: Tensor) -> Tensor:
        """|f_i|^2/2 - m^2/2 [n, 1]."""
        return _half_squares(rows).sub_(self._half_square)[:, None]

    def _block(self, n: int) -> tuple[int, int]:
        """Rows and columns of a block for n rows."""
        rows, columns = CPU_BLOCK if self._offset.device.type == "cpu" else DEVICE_BLOCK
        return max(1, min(rows, n)), min(columns, len(self._offset))

    def _spans(self, labels: Tensor, step: int) -> Iterator[_Span]:
        """The column blocks with the range of sorted row labels [n] that occur in each.

        The only place where the host waits for the device, once for all blocks.
        """
        starts = torch.arange(0, len(self.labels), step, device=labels.device)
        low = self.labels[starts]
        high = self.labels[(starts + step - 1).clamp_max_(len(self.labels) - 1)]
        first = torch.searchsorted(labels, low)
        stop = torch.searchsorted(labels, high, right=True)
        values = torch.stack((starts, first, stop, (low == high).long()), 1)
        for start, one, two, single in values.tolist():
            columns = slice(start, min(start + step, len(self.labels)))
            yield _Span(columns, one, two, bool(single))


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
