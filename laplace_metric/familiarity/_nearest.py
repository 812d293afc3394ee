"""Squared distances of directions to the nearest class mean, and to the nearest point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import LEAST_ROWS, block_rows
from laplace_metric._utils.smallest_of_rows import smallest_of_rows
from laplace_metric.familiarity._row_sample import row_weights

ROWS = 512
"""Rows of a sample that are compared with all of it at once, so that caches hold the result."""
SAME, SAME_MARK = 64, 1e-5
"""Bounds within which points of length 1 are equal.

The first is of their squared distance, in machine epsilons, the second of their products with the
random weights.
"""


def nearest_distance(
    a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"], sizes: Float[Tensor, " C"]
) -> Tensor:
    """Return min_c d_c [B] of whitened vectors; ``sizes`` are the squared lengths of ``classes``.

    The nearest class is found by the expanded square, its distance from the differences.
    """
    # |a - m|^2 = |a|^2 - 2 a.m + |m|^2, where |a|^2 is the same for every class: one product [B, C]
    parts = a.split(rows_at_once(classes))
    nearest = torch.cat([smallest_of_rows(sizes - 2 * part @ classes.mT) for part in parts])
    return (a - classes[nearest]).square().sum(1)


def nearest_points(
    x: Float[Tensor, "B D"],
    white: Float[Tensor, "B E"],
    kept: KeptPoints,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return cosine and local [B]: squared distances to the nearest point that is not x itself.

    Equal points are found by the points as they are, not as whitened. The nearest is found by the
    expanded square, its distance from the differences.

    Parameters
    ----------
    x, white : Tensor [B, D], [B, E]
        Directions of the inputs, and the same whitened.
    kept : KeptPoints
        Directions of the sample.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    >>> nearest_points(x, 2 * x, KeptPoints.of(x, 2 * x))
    (tensor([9., 9.]), tensor([36., 36.]))
    """
    step = rows_at_once(kept.points)
    parts = [slice(start, start + step) for start in range(0, max(1, len(x)), step)]
    found = [_nearest_of_part(x[part], white[part], kept) for part in parts]
    cosine, local = torch.cat(found, 1) if len(found) > 1 else found[0]
    return cosine, local


class KeptPoints(NamedTuple):
    """Sample of the fit set, with what does not depend on the inputs that are compared with it.

    Parameters
    ----------
    points, white : Tensor [S, D], [S, E]
        Directions of the sample, and the same whitened.
    sizes, white_sizes, marks : Tensor [S]
        Squared lengths of the points, and their products with the random weights.
    weights : Tensor [D]
        Random weights by which equal points are recognised.
    """

    points: Tensor
    white: Tensor
    sizes: Tensor
    white_sizes: Tensor
    marks: Tensor
    weights: Tensor

    @classmethod
    def of(cls, points: Float[Tensor, "S D"], white: Float[Tensor, "S E"]) -> KeptPoints:
        """Compute sizes and marks."""
        weights = row_weights(points.shape[1]).to(points)
        sizes = points.square().sum(1), white.square().sum(1)
        return cls(points, white, *sizes, points @ weights, weights)


def _nearest_of_part(x: Tensor, white: Tensor, kept: KeptPoints) -> Float[Tensor, "2 B"]:
    """Compute cosine and local of a part; equal points are looked for where one was found.

    Few inputs are points of the fit set: the comparison of ``others_of`` with all points is theirs.
    """
    at = [
        # without |a|^2, which is the same for all points of a row
        smallest_of_rows(torch.addmm(size, a, b.mT, alpha=-2))
        for a, b, size in ((x, kept.points, kept.sizes), (white, kept.white, kept.white_sizes))
    ]
    nearest = torch.stack(at)
    gaps = (x - kept.points[nearest]).square().sum(2)
    found = torch.stack([gaps[0], (white - kept.white[at[1]]).square().sum(1)])
    sizes = x.square().sum(1) + kept.sizes[nearest]
    if not bool(_up_to_rounding(gaps, sizes).any()):
        return found
    same = _same(gaps, sizes, x @ kept.weights - kept.marks[nearest]).any(0)
    if bool(same.any()):
        part = others_of(x[same], kept.points, white[same], kept.white, kept.weights)
        found[:, same] = torch.stack(part)
    return found


def others_of(
    x: Tensor, points: Tensor, white: Tensor, white_points: Tensor, weights: Tensor
) -> list[Tensor]:
    """Compute ``nearest_points`` of a part, by operations that a graph can hold.

    Equal points have a distance that is rounding, and the same product with the ``weights``: the
    distance alone would take points that are a thousandth apart for equal in float32.
    """
    # [B, S]: |x|^2 + |b|^2 - 2 x.b by one product; it rounds by about eps (|x|^2 + |b|^2), so it
    # ranks, and the distance itself is then taken from the differences to the nearest
    sizes = points.square().sum(1) + x.square().sum(1, keepdim=True)
    apart = sizes - 2 * x @ points.mT
    same = _same(apart, sizes, (x @ weights)[:, None] - points @ weights)
    # without |white|^2, which is the same for all points of a row
    white_apart = white_points.square().sum(1) - 2 * white @ white_points.mT
    found = []
    for a, b, d in ((x, points, apart), (white, white_points, white_apart)):
        nearest = d.masked_fill(same, torch.inf).argmin(1)
        found.append((a - b[nearest]).square().sum(1))
    return found


def _same(apart: Tensor, sizes: Tensor, marks: Tensor) -> Tensor:
    """Return which points are equal, by their squared distance and the difference of their marks.

    ``sizes`` are the sums of their squares.
    """
    return _up_to_rounding(apart, sizes) & (marks.abs() <= SAME_MARK * sizes.sqrt())


def _up_to_rounding(apart: Tensor, sizes: Tensor) -> Tensor:
    """Return which squared distances are rounding errors of ``sizes``, the sums of the squares."""
    return apart <= SAME * torch.finfo(apart.dtype).eps * sizes


def nearest_others(
    points: Sequence[Float[Tensor, "S E"]],
    rows: Int[Tensor, " n"],
    equal: Int[Tensor, " S"],
    group: Int[Tensor, " S"],
) -> Int[Tensor, "s 2 n"]:
    """Return the nearest unequal point to each row, and the nearest one of other groups.

    Parameters
    ----------
    points : sequence of s tensors [S, E]
        The points, as each distance sees them; equality is that of the first one.
    rows : Tensor [n]
        Points whose neighbours are searched.
    equal, group : Tensor [S]
        Numbers of the points' directions, which are the same for equal ones, and of their groups.

    Examples
    --------
    >>> x, one = torch.tensor([[0.0], [1.0], [3.0], [3.0]]), torch.arange(4) // 2
    >>> nearest_others([x], torch.arange(4), torch.tensor([0, 1, 2, 2]), one).tolist()
    [[[1, 0, 1, 1], [2, 2, 1, 1]]]
    """
    # points in the order of their groups: the other members of a group are neighbouring columns
    order = group.argsort(stable=True)
    ordered = [p[order] for p in points]
    x, sizes = ordered[0], [p.square().sum(1) for p in ordered]
    marks, equal, group = x @ row_weights(x.shape[1]).to(x), equal[order], group[order]
    at = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)).to(order))[rows]
    found = torch.zeros(len(points), 2, len(rows), dtype=torch.int64, device=x.device)
    copies = len(equal.unique()) < len(equal)

    def search(some: Tensor, first: int, last: int, *, careful: bool) -> None:
        for part in some.split(ROWS):
            own = at[part]
            hidden = equal[own, None] == equal if copies or careful else None
            if hidden is not None and careful:  # points up to the rounding of their type, too
                both = sizes[0][own, None] + sizes[0]
                hidden |= _same(both - 2 * x[own] @ x.mT, both, marks[own, None] - marks)
            for p, size, nearest in zip(ordered, sizes, found, strict=True):
                # without the row's own square, which is the same for all points
                apart = torch.addmm(size, p[own], p.mT, alpha=-2)
                if hidden is None:
                    apart[torch.arange(len(own)), own] = torch.inf
                else:
                    apart.masked_fill_(hidden, torch.inf)
                nearest[0, part] = smallest_of_rows(apart)
                apart[:, first:last] = torch.inf
                nearest[1, part] = smallest_of_rows(apart)

    ends = group.bincount().cumsum(0).tolist()
    for number, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        members = (group[at] == number).nonzero()[:, 0]
        search(members, first, last, careful=False)
        near = found[:, :, members]
        both, gaps = sizes[0][at[members]] + sizes[0][near], marks[at[members]] - marks[near]
        squared = (x[at[members]] - x[near]).square().sum(-1)
        again = _same(squared, both, gaps).any(0).any(0)
        if bool(again.any()):
            search(members[again], first, last, careful=True)
    return order[found]


def rows_at_once(columns: Tensor) -> int:
    """Return how many rows of a product with ``columns`` are held at once."""
    return block_rows(columns.element_size() * len(columns), least=LEAST_ROWS)


def squared_distances(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """Return d_c [B, C] of whitened vectors, by the expanded square."""
    sizes = a.square().sum(1, keepdim=True) + classes.square().sum(1)
    return (sizes - 2 * a @ classes.mT).clamp_min(0)
