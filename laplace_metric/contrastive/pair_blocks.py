"""The diagonal for explicit pair weights: a dense block Y [n, m] of symmetric targets y_ij.

Used where no class-sum form exists: pairs inside a finite margin, and the tuples of a miner. With
c_ij = <u_i, u_j> the diagonal of the cross block is (see ``geometry``)

    -sum_ij Y_ij (1 - u_ik^2 - u_jk^2 + c_ij u_ik u_jk) a_id a_jd
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.contrastive.class_sums import point_diagonal
from laplace_metric.contrastive.geometry import Geometry, Points


def dense_diagonal(points: Points, targets: Tensor, geometry: Geometry, *, cross: bool) -> Tensor:
    """Curvature diagonal [K, D'] float64 of all pairs of one block, Y [B, B] symmetric.

    Memory [B, B] + [B, D']; time O(B^2 Z D') with ``cross``, O(B^2 Z + B Z D') without.
    """
    weight, pull = targets.sum(1), targets @ points.directions
    value = point_diagonal(points, geometry, weight, pull)
    return value + cross_diagonal(points, points, targets) if cross else value


def cross_diagonal(rows: Points, columns: Points, targets: Tensor) -> Tensor:
    """``2 diag(sum_ij J_i^T C_ij J_j)`` [K, D'] float64 over the block Y [n, m]."""
    a_i, a_j, u_i, u_j = rows.features, columns.features, rows.directions, columns.directions
    paired = a_i * (targets @ a_j)  # [n, D']
    value = paired.sum(0) - u_i.square().mT @ paired
    value = value - u_j.square().mT @ (a_j * (targets.mT @ a_i))
    cosine = targets * (u_i @ u_j.mT)
    last = [
        (u_i[:, k, None] * a_i * (cosine @ (u_j[:, k, None] * a_j))).sum(0)
        for k in range(u_i.shape[1])
    ]
    return -2 * (value + torch.stack(last)).double()
