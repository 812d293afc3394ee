"""Squared distances of directions to the nearest class mean, and to the nearest point."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.familiarity._row_sample import row_weights

AT_ONCE = 2**22
"""Distances to class means that are held at once."""
SAME, SAME_MARK = 64, 1e-5
"""Bounds within which points of length 1 are equal.

The first is of their squared distance, in machine epsilons, the second of their products with the
random weights.
"""


def nearest_distance(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """Return min_c d_c [B] of whitened vectors.

    The nearest class is found by the expanded square, its distance from the differences.
    """
    # |a - m|^2 = |a|^2 - 2 a.m + |m|^2, where |a|^2 is the same for every class: one product [B, C]
    sizes = classes.square().sum(1)
    parts = a.split(rows_at_once(classes))
    nearest = torch.cat([(sizes - 2 * part @ classes.mT).argmin(1) for part in parts])
    return (a - classes[nearest]).square().sum(1)


def nearest_points(
    x: Float[Tensor, "B D"],
    points: Float[Tensor, "S D"],
    white: Float[Tensor, "B E"],
    white_points: Float[Tensor, "S E"],
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return cosine and local [B]: squared distances to the nearest point that is not x itself.

    Equal points are found by the points as they are, not as whitened. The nearest is found by the
    expanded square, its distance from the differences.

    Parameters
    ----------
    x, points : Tensor [B, D], [S, D]
        Directions of the inputs and of the sample.
    white, white_points : Tensor [B, E], [S, E]
        Whitened directions of the inputs and of the sample.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    >>> nearest_points(x, x, 2 * x, 2 * x)
    (tensor([9., 9.]), tensor([36., 36.]))
    """
    weights, found = row_weights(x.shape[1]).to(x), []
    for part, white_part in zip(*(a.split(rows_at_once(points)) for a in (x, white)), strict=True):
        found.append(torch.stack(others_of(part, points, white_part, white_points, weights)))
    cosine, local = torch.cat(found, 1)
    return cosine, local


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
    marks = (x @ weights)[:, None] - points @ weights
    same = apart <= SAME * torch.finfo(x.dtype).eps * sizes
    same = same & (marks.abs() <= SAME_MARK * sizes.sqrt())
    # without |white|^2, which is the same for all points of a row
    white_apart = white_points.square().sum(1) - 2 * white @ white_points.mT
    found = []
    for a, b, d in ((x, points, apart), (white, white_points, white_apart)):
        nearest = d.masked_fill(same, torch.inf).argmin(1)
        found.append((a - b[nearest]).square().sum(1))
    return found


def rows_at_once(columns: Tensor) -> int:
    """Return how many rows of a product with ``columns`` are held at once."""
    return max(64, AT_ONCE // len(columns))


def squared_distances(a: Float[Tensor, "B D"], classes: Float[Tensor, "C D"]) -> Tensor:
    """Return d_c [B, C] of whitened vectors, by the expanded square."""
    sizes = a.square().sum(1, keepdim=True) + classes.square().sum(1)
    return (sizes - 2 * a @ classes.mT).clamp_min(0)
