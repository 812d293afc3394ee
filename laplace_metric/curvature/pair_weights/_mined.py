"""PairWeights of a miner's tuples: a dense symmetric Y [B, B] of one batch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.errors import InputError


def mined_pair_weights(
    indices: tuple[Tensor, ...],
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
        If there are not three or four index vectors.

    Examples
    --------
    >>> triplet = tuple(torch.tensor([i]) for i in (0, 1, 2))
    >>> mined_pair_weights(triplet, torch.eye(3))
    tensor([[ 0.0000,  0.5000, -0.5000],
            [ 0.5000,  0.0000,  0.0000],
            [-0.5000,  0.0000,  0.0000]])
    """
    if len(indices) not in (3, 4):
        raise InputError(
            f"indices_tuple has {len(indices)} index vectors: pass (anchor, positive, negative) or "
            "(anchor1, positive, anchor2, negative) as pytorch-metric-learning's miners do."
        )
    a1, p, a2, n = indices if len(indices) == 4 else (*indices[:2], indices[0], indices[2])
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
