"""The exact diagonal over ALL pairs from class sums: never a pair list, O(N Z D) for fixed.

Every target is one of two numbers, ``y_ij = 1/P`` inside a class and ``-b`` between classes
(``b = 1/M``, or 0 where negatives do not count here), so sums over pairs are sums over classes:

    w_i = n_c/P - b (N - n_c)          m_i = s_c/P - b (s - s_c)           c the class of i
    sum_ij y_ij J^_i^T J^_j = (1/P + b) sum_c G_c^T G_c - b G^T G          G_c = sum_{i in c} J^_i

with s_c the class sum of directions, s = sum_c s_c, G = sum_c G_c. Two phases, each one pass over
the features: class sums, then the products. (From Warburg et al. 2023, LAM, eqs 12, 98-102.)
"""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from torch import Tensor

from laplace_metric.contrastive.geometry import Geometry, Points
from laplace_metric.contrastive.statistics import ClassSums
from laplace_metric.contrastive.targets import PairCounts, class_weights
from laplace_metric.features import FeatureStore, block_rows
from laplace_metric.jacobians import LinearJacobian

SLAB_BYTES = 2 * 2**20, 128 * 2**20
"""Least and most memory of one slab of G_c; a larger head takes more passes, not more memory."""


def collect_class_sums(store: FeatureStore, head: LinearJacobian, geometry: Geometry) -> ClassSums:
    """Phase one: counts, and for arccos the class sums of directions s_c [C, Z]."""
    if not geometry.curved_loss:
        return ClassSums.of(store.labels)
    return reduce(
        add,
        (
            ClassSums.of(store.labels[part], geometry.points(h, head.raw(h)).directions)
            for part, h in store.blocks()
        ),
    )


def point_part(
    store: FeatureStore,
    head: LinearJacobian,
    geometry: Geometry,
    sums: ClassSums,
    *,
    negatives: bool,
) -> Tensor:
    """``diag(sum_i J_i^T B_i J_i)`` [K, D'] float64: one product [K, N] x [N, D']."""
    weight, pull = _targets_by_class(sums, negatives=negatives)
    total: Tensor | None = None
    for part, h in store.blocks():
        points = geometry.points(head.augment(h), head.raw(h))
        position = sums.index(store.labels[part])
        w, m = (values.to(h.dtype)[position] for values in (weight, pull))
        term = point_diagonal(points, geometry, w, m)
        total = term if total is None else total.add_(term)
    assert total is not None
    return total


def point_diagonal(points: Points, geometry: Geometry, weight: Tensor, pull: Tensor) -> Tensor:
    """``sum_i 2 diag(T_i)_k a_id^2`` [K, D'] float64 for one block of points."""
    blocks = geometry.point_blocks(points.directions, weight, pull)
    return (2 * blocks.mT @ points.features.square()).double()


def _targets_by_class(sums: ClassSums, *, negatives: bool) -> tuple[Tensor, Tensor]:
    """w_c [C] and m_c [C, Z] (see the module's formulas)."""
    pairs = PairCounts.of(sums.counts)
    s_c, s = sums.sums, sums.sums.sum(0)
    b = pairs.negative_weight if negatives else 0.0
    weight = class_weights(sums.counts, negatives=negatives)
    return weight, pairs.positive_weight * s_c - b * (s - s_c)


def cross_part(
    store: FeatureStore,
    head: LinearJacobian,
    geometry: Geometry,
    sums: ClassSums,
    *,
    negatives: bool,
) -> Tensor:
    """``2 diag(sum_ij J_i^T C_ij J_j)`` [K, D'] float64, O(N Z^2 D) in matrix products."""
    pairs = PairCounts.of(sums.counts)
    b = pairs.negative_weight if negatives else 0.0
    n_rows = geometry.n_rows(len(head.weight))
    n_columns = head.augment(head.weight[:0]).shape[1]
    result = torch.zeros(n_rows, n_columns, dtype=torch.float64, device=store.device)
    entries = torch.triu_indices(n_rows, n_rows, device=store.device)  # J^ is symmetric in k, l
    for slab in entries.split(block_rows(n_columns, 8, _slab_budget(store)), dim=1):
        squares, total = _summed_jacobians(store, head, geometry, sums, slab, n_columns)
        inner = (pairs.positive_weight + b) * squares - b * total.square()
        k, off = slab[0], slab[0] != slab[1]
        result.index_add_(0, k, inner, alpha=-2)
        result.index_add_(0, slab[1, off], inner[off], alpha=-2)
    return result


def _slab_budget(store: FeatureStore) -> int:
    """A quarter of what the points themselves take, within ``SLAB_BYTES``."""
    least, most = SLAB_BYTES
    return min(most, max(least, store.nbytes // 4))


def _summed_jacobians(
    store: FeatureStore,
    head: LinearJacobian,
    geometry: Geometry,
    sums: ClassSums,
    slab: Tensor,
    n_columns: int,
) -> tuple[Tensor, Tensor]:
    """``sum_c G_c^2`` and ``G`` [p, D'] for the entries (k, l) of one slab."""
    squares = torch.zeros(slab.shape[1], n_columns, dtype=torch.float64, device=store.device)
    total = torch.zeros_like(squares)
    rows = block_rows(n_columns + slab.shape[1], 4, _slab_budget(store))  # long products pay off
    order = store.labels.argsort(stable=True)
    for members in order.split(sums.counts.tolist()):
        of_class = torch.zeros_like(squares)
        for index in members.split(rows):
            h = store.rows(index)
            points = geometry.points(head.augment(h), head.raw(h))
            of_class += projector_entries(points.directions, slab).mT @ points.features
        total += of_class
        squares.addcmul_(of_class, of_class)
    return squares, total


def projector_entries(directions: Tensor, entries: Tensor) -> Tensor:
    """``(I - u u^T)_kl`` [n, p] for entries (k, l) [2, p]; 1 in the raw geometry (u = 0)."""
    k, l = entries  # noqa: E741
    return (k == l).to(directions.dtype) - directions[:, k] * directions[:, l]
