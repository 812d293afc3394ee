"""The reach of a class: how far apart embeddings of one class are, between near and typical ones.

    r^3 = d s^2        d^2 = mean_i min_j |z_i - z_j|^2         j of the class of i, another point
                       s^2 = sum_i |z_i - m_c|^2 / (n - C)      the variance within classes

Here i runs over at most 500 points (``compared_points``) with class means m_c, j over all points of
the fit. d falls with N like ``N^(-1/dimensions)``, and s not at all; r falls a third as fast as d.
Both are second moments, and so depend little on which points were drawn. On the sphere, z are
directions. Points in the place of i, up to rounding, are copies of it and no neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.blocks import LARGE_BYTES, blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.models._blocks import Block

COPY = 1e-8
"""Largest squared distance of copies, in units of the variance within classes."""
Embed = Callable[[Tensor], Tensor]
"""Inputs of the head [n, D] -> raw embeddings [n, Z] of the trained one."""


@full_precision()
@torch.no_grad()
def class_reach(
    embed: Embed,
    features: Float[Tensor, "n D"],
    labels: Int[Tensor, " n"],
    fit_set: Iterable[Block],
    *,
    spherical: bool,
) -> float:
    """Return r^2, a squared distance; 0 where classes are points, or have one each.

    Costs one product of the head with all points, and of n embeddings with all others. Memory: a
    block of these, of 64 MB at most or one row.

    Parameters
    ----------
    embed : function
        Inputs of the head [n, D] -> raw embeddings [n, Z] of the trained one.
    features : Tensor [n, D]
        Inputs of the head at some points of the fit, of two or more of each class.
    labels : Tensor [n]
        Class of each of them.
    fit_set : iterable of Block
        All points of the fit.
    spherical : bool
        True if embeddings are directions.

    Examples
    --------
    Two classes at 0, 3, 4 and 10, 13, 14: nearest ones are 3, 1, 1 away, the variance is 13/3.

    >>> from laplace_metric.models._feature_store import FeatureStore
    >>> h, y = torch.tensor([[0.0], [3], [4], [10], [13], [14]]), torch.arange(6) // 3
    >>> blocks_of_all = FeatureStore.of(h, y).blocks()
    >>> r2 = class_reach(lambda h: h, h, y, blocks_of_all, spherical=False)
    >>> round(r2 / (11 / 3 * (13 / 3) ** 2) ** (1 / 3), 6)
    1.0
    """

    def embedded(h: Tensor) -> Tensor:
        z = embed(h).double()
        return nn.functional.normalize(z, dim=1) if spherical else z

    z = embedded(features)
    center = z.mean(0)  # differences alone: squares of what all share would drown them
    z = z - center
    within = _variance_within(z, labels)
    nearest = torch.full_like(z[:, 0], torch.inf)
    for block in fit_set:
        for part in blocks(len(block), 8 * (2 * len(z) + z.shape[1]), LARGE_BYTES):
            others = embedded(block.features[part]) - center
            apart = torch.addmm(others.square().sum(1), z, others.mT, alpha=-2)
            apart += z.square().sum(1, keepdim=True)
            none = labels[:, None] != block.labels[part]
            none |= apart <= COPY * within
            nearest = torch.minimum(nearest, apart.masked_fill_(none, torch.inf).amin(1))
    found = nearest[nearest.isfinite()]
    return float((found.mean() * within**2) ** (1 / 3)) if len(found) else 0.0


def _variance_within(z: Float[Tensor, "n Z"], labels: Int[Tensor, " n"]) -> float:
    """Return the variance within classes, summed over coordinates."""
    _, code, sizes = labels.unique(return_inverse=True, return_counts=True)
    means = z.new_zeros(len(sizes), z.shape[1]).index_add_(0, code, z) / sizes[:, None]
    return float((z - means[code]).square().sum()) / max(1, len(z) - len(sizes))
