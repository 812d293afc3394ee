"""Points of some classes at random, few enough to compare each with each."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

MOST, MEMBERS = 1_000, 20
"""Points that are compared, and members of a class among them where classes are many."""


def compared_rows(labels: Int[Tensor, " N"], most: int = MOST) -> Int[Tensor, " n"]:
    """Return rows of at most ``most`` points, of classes that have two or more.

    Up to 20 of each class, more where there are fewer than ``most / 20`` classes.

    Classes and members are drawn from a seed of their own: the same rows for the same labels.

    Examples
    --------
    >>> compared_rows(torch.tensor([7, 3, 7, 5])).sort().values
    tensor([0, 2])
    """
    source = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(labels), generator=source).to(labels.device)
    classes, code, counts = labels[shuffled].unique(return_inverse=True, return_counts=True)
    by_class = code.argsort(stable=True)
    starts, sizes = (counts.cumsum(0) - counts).tolist(), counts.tolist()  # one wait for a device
    members = max(MEMBERS, most // len(classes))
    rows, taken = list[Tensor](), 0
    for place in torch.randperm(len(classes), generator=source).tolist():
        size, start = min(sizes[place], members), starts[place]
        if size > 1:
            rows.append(shuffled[by_class[start : start + size]])
            taken += size
        if taken >= most:
            break
    return torch.cat(rows)[:most] if rows else labels.new_zeros(0)
