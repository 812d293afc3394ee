"""Points of some classes at random, few enough to compare each with each.

Points of a fit are drawn by their content, so that neither their order nor a few more of them
changes many of those that are compared, and copies of a point count once. With ``p_k`` the
projections of a row (``_fingerprints``), it is drawn before another one of its class if

    frac(2^10 p_1)

is smaller. Rows of one class whose ``p_0``, ``p_1`` and ``p_2`` are the same up to rounding are
one.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.models._feature_store import FeatureStore
from laplace_metric.models._fingerprints import FINGERPRINT_STEP, row_projections

MOST, MEMBERS = 1_000, 20
"""Points that are compared, and members of a class among them where classes are many."""
SPREAD = 2.0**10
"""Factor of a projection before its fraction is taken: rounding moves the fraction by 1e-3."""
ODD = 0x1E3779B97F4A7C15
"""Odd factor by which class codes are shuffled, modulo 2^64 (Knuth 1973, section 6.4)."""


def compared_rows(
    labels: Int[Tensor, " N"], most: int = MOST, order: Int[Tensor, " M"] | None = None
) -> Int[Tensor, " n"]:
    """Return rows of at most ``most`` points, of classes that have two or more.

    Up to 20 of each class, more where there are fewer than ``most / 20`` classes. Classes are taken
    in a fixed order that looks random: another class changes the place of no other.

    Parameters
    ----------
    labels : Tensor [N]
        Class of each point.
    most : int
        Number of rows, at most. Default: 1,000.
    order : Tensor [M] or None
        Rows that may be taken, the first ones of each class first. None, the default: all, shuffled
        from a seed of their own, the same for every N labels.

    Examples
    --------
    >>> compared_rows(torch.tensor([7, 3, 7, 5])).sort().values
    tensor([0, 2])
    """
    if order is None:
        source = torch.Generator().manual_seed(0)
        order = torch.randperm(len(labels), generator=source)
    order = order.to(labels.device)
    classes, code, counts = labels[order].unique(return_inverse=True, return_counts=True)
    by_class = code.argsort(stable=True)
    starts, sizes = (counts.cumsum(0) - counts).tolist(), counts.tolist()  # one wait for a device
    members = max(MEMBERS, most // max(1, len(classes)))
    rows, left = list[Tensor](), most
    for place in (classes * ODD).argsort().tolist():
        size, start = min(sizes[place], members, left), starts[place]
        if size > 1:
            rows.append(order[by_class[start : start + size]])
            left -= size
    return torch.cat(rows) if rows else labels.new_zeros(0)


def compared_points(store: FeatureStore, most: int = MOST) -> Int[Tensor, " n"]:
    """Return rows of at most ``most`` points of a fit, by their content; none if of one class.

    Parameters
    ----------
    store : FeatureStore
        Points that were fitted.
    most : int
        Number of rows, at most. Default: 1,000.

    Examples
    --------
    >>> h = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> store = FeatureStore.of(h.repeat(2, 1), torch.arange(80) % 4)  # each point twice
    >>> len(compared_points(store))
    40
    """
    labels = store.labels
    marks = torch.cat([row_projections(block.features.double())[:, :3] for block in store.blocks()])
    order = marks[:, 1].argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    new = torch.ones_like(order, dtype=torch.bool)
    apart = (marks[order[1:]] - marks[order[:-1]]).abs() > FINGERPRINT_STEP
    new[1:] = apart.any(1) | (labels[order[1:]] != labels[order[:-1]])
    order = order[new]
    fraction = (marks[order, 1].double() * SPREAD) % 1.0
    rows = compared_rows(labels, most, order[fraction.argsort()])
    return rows if len(labels[rows].unique()) > 1 else rows[:0]
