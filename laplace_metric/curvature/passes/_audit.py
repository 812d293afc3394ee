"""Audit of merged statistics: every pass must have read the same points."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.curvature._statistics import ClassSums
from laplace_metric.errors import InputError

ROUNDINGS = 1_000
"""Roundings a point by which its direction may differ from pass to pass."""


def probe_direction(like: Tensor) -> Tensor:
    """A fixed unit vector r of as many entries as ``like`` [n, K] has columns."""
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
    raise InputError(
        f"this pass read {read.n_points} points and the first one {expected.n_points}"
        f"{_difference(read, expected)}: merge the statistics of every shard once in each pass, "
        "and let the loader yield the same points each time."
    )


def _difference(read: ClassSums, expected: ClassSums) -> str:
    minus = ClassSums(expected.classes, -expected.counts, expected.sums[:, :0])
    both = ClassSums(read.classes, read.counts, read.sums[:, :0]) + minus
    index = int(both.counts.ne(0).nonzero()[0])
    return f" (of class {int(both.classes[index])} {int(both.counts[index]):+d})"
