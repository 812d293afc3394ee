"""The curvature of one minibatch, from all its pairs or from the pairs of a miner."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._memory import check_memory
from laplace_metric.curvature._mined_pairs import MinedPairs, mined_pair_weights
from laplace_metric.curvature._schedule import execute
from laplace_metric.curvature._structure_passes import in_structure
from laplace_metric.curvature._structures import Curvature
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import InputError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.models._store import FeatureStore


def batch_curvature(
    features: Float[Tensor, "B D"],
    head: HeadJacobian,
    loss: ContrastiveLoss,
    structure: str = "diag",
    *,
    labels: Int[Tensor, " B"] | None = None,
    indices_tuple: Any = None,
) -> Curvature:
    """Compute H of one minibatch, from all its pairs or from a miner's tuples.

    Positive and negative pairs are scaled separately, ``1/|B_pos|`` and ``-1/|B_neg|``, which is
    the paper's y^B with its factor |D^2|/|B|: an estimate of the all-pairs curvature.

    Parameters
    ----------
    features : Tensor [B, D]
        Inputs of the head.
    head : HeadJacobian
        Jacobian of the head.
    loss : ContrastiveLoss
        Loss that is differentiated.
    structure : "diag" | "kron" | "full"
        Structure of H.
    labels : Tensor [B] or None
        Labels, to use all pairs of the batch.
    indices_tuple : tuple of Tensor or None
        Pairs or triplets of a pytorch-metric-learning miner, to use these instead.

    Raises
    ------
    InputError
        Unless exactly one of ``labels`` and ``indices_tuple`` is given.
    """
    if (labels is None) == (indices_tuple is None):
        raise InputError("pass exactly one of labels and indices_tuple.")
    if labels is not None:
        return all_pairs_curvature(FeatureStore.of(features, labels), head, loss, structure)
    check_memory(structure, head.layouts, features.device)
    unread = FeatureStore.of(features, torch.zeros(len(features), dtype=torch.int64))
    points = loss.geometry.points_of(head, features)
    if loss.cancels or ClassSums.of(unread.labels, points.directions).nearly_one_direction:
        head = head.to(torch.float64)
        points = loss.geometry.points_of(head, features)
    y = mined_pair_weights(indices_tuple, points.coordinates, loss.margin, negatives=loss.negatives)
    pairs = MinedPairs(points, loss, y)
    return execute(in_structure(pairs.totals, head, loss, structure), unread)
