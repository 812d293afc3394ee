"""Pairs of one batch that a miner of pytorch-metric-learning chose: a dense symmetric Y [B, B].

The curvature of one minibatch, from all its pairs or from the pairs of a miner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.curvature._all_pairs import all_pairs_curvature, in_structure
from laplace_metric.curvature._curvature_term import CurvatureTerm
from laplace_metric.curvature._loss import ContrastiveLoss
from laplace_metric.curvature._passes import PassSchedule, execute
from laplace_metric.curvature._statistics import add_terms
from laplace_metric.curvature._structures import Curvature, check_memory
from laplace_metric.curvature.by_class import ClassSums, PointBlocks, Points
from laplace_metric.errors import InputError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.models._feature_store import FeatureStore

INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


def mined_pair_weights(
    indices: Any,
    coordinates: Float[Tensor, "B Z"],
    margin: float | None = None,
    *,
    negatives: bool = True,
) -> Float[Tensor, "B B"]:
    """Return the symmetric targets Y [B, B] of a pytorch-metric-learning miner's tuples.

    Pairs are ``(a1, p, a2, n)``, triplets ``(a, p, n)`` (as pairs (a, p) and (a, n)). A pair that
    is listed twice counts twice, in the sums and in P and M alike. Y is symmetrised, since a pair
    acts on both of its points.

    Parameters
    ----------
    indices : tuple or list of Tensor
        Three or four vectors of row numbers of the batch.
    coordinates : Tensor [B, Z]
        Coordinates that the distance compares.
    margin : float or None
        Negative pairs farther apart get no target. None: all of them count.
    negatives : bool
        Give negative pairs a target.

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
    """Return ``(a1, p, a2, n)`` on the device of the points; check that each index is a row."""
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


@dataclass(frozen=True)
class MinedPairs:
    """Pairs of the points of one batch, with symmetric weights Y [B, B]."""

    points: Points
    loss: ContrastiveLoss
    weights: Tensor

    def totals(self, term: CurvatureTerm) -> PassSchedule[list[Tensor]]:
        """Return the totals of a term, from ``w_i = sum_j y_ij``, ``m_i = sum_j y_ij u_j``."""
        yield from ()
        u, y = self.points.directions, self.weights
        totals = term.zeros()
        curved = self.loss.geometry.curved_loss
        blocks = PointBlocks.of(u, y.sum(1), y @ u, curved_loss=curved)
        add_terms(totals, term.points(self.points, blocks))
        if self.loss.cross:
            add_terms(totals, term.pairs(self.points, self.points, y))
        return totals


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
