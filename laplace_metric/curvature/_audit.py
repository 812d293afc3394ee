"""Checks that every pass read the same points, and that the sums are finite."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import InputError, NonFiniteError

ROUNDINGS = 1_000
"""Number of rounding errors by which the direction of a point may differ from pass to pass."""


def probe_direction(like: Tensor) -> Tensor:
    """Return a fixed unit vector r [K] for ``like`` [n, K]: ``<u_i, r>`` identifies directions."""
    places = torch.arange(1, like.shape[1] + 1, dtype=torch.float64, device=like.device)
    r = places.mul_(2.4).cos_()
    return (r / r.norm()).to(like)


def check_same_directions(read: ClassSums, expected: ClassSums, eps: float) -> None:
    """Raise ``InputError`` unless ``sum_i <u_i, r>`` of each class is that of the first pass.

    Other points with the same labels are found here: another shard in the place of one, or a loader
    that yields something else.

    Raises
    ------
    InputError
    """
    gap = (read.sums[:, 0] - expected.sums @ probe_direction(expected.sums)).abs()
    off = gap > ROUNDINGS * eps * expected.counts
    if bool(off.any()):
        raise InputError(
            f"this pass read other points than the first one (of class "
            f"{int(expected.classes[off][0])}): merge the statistics of every shard once in each "
            "pass, and let the loader yield the same points each time."
        )


def check_same_points(read: ClassSums, expected: ClassSums) -> None:
    """Raise ``InputError`` unless a pass read as many points of each class as the first one.

    A shard that is left out or merged twice is found here.

    Raises
    ------
    InputError
    """
    if torch.equal(read.classes, expected.classes) and torch.equal(read.counts, expected.counts):
        return
    minus = ClassSums(expected.classes, -expected.counts, expected.sums[:, :0])
    both = ClassSums(read.classes, read.counts, read.sums[:, :0]) + minus
    index = int(both.counts.ne(0).nonzero()[0])
    raise InputError(
        f"this pass read {read.n_points} points and the first one {expected.n_points} (of class "
        f"{int(both.classes[index])} {int(both.counts[index]):+d}): merge the statistics of every "
        "shard once in each pass, and let the loader yield the same points each time."
    )


def check_finite_sums(merged: Statistics) -> None:
    """Raise an error unless every total is finite.

    Raises
    ------
    InputError
        If a total is NaN: an embedding has no direction.
    NonFiniteError
        If one overflowed.
    """
    for tensor in (merged.by_class.sums, *merged.totals):
        if not tensor.numel():
            continue
        low, high = tensor.aminmax()  # one reading; NaN propagates
        if bool(low.isnan()):
            raise InputError(
                "some embeddings are exactly zero and have no direction (or the model overflows): "
                "remove those inputs or use distance='euclidean' on a network without "
                "normalisation."
            )
        if not bool(low.isfinite() & high.isfinite()):
            raise NonFiniteError(
                "the curvature overflows: scale the features down or fit in float64."
            )
