"""Bursts: points of one class that lie together, far nearer than what surrounds them explains.

Frames of a video, photographs of one object, augmented copies. Around a point whose surroundings
are evenly dense in m dimensions, with neighbours of its own class at ``d_1 < d_2 < ...``,

    m k log(d_(k+1) / d_k)      k = 1, 2, ...

are independent and exponential (Renyi 1953); m follows from their median. A burst of b points shows
as one large step, behind the b - 1 others of the burst, before the rest of the class begins.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, block_rows

RARE = 1e-3
"""Probability of a step that counts as one."""
BURST_APART = 0.7
"""Largest distance of a burst in distances of the next point of the class: smaller steps are rare
in many dimensions, but harmless."""
LARGEST_BURST = 60
"""Points of a burst; it is at most half of its class, or the class itself would be one."""


ROUNDED = 1.001
"""Factor of a radius that covers the rounding of distances; what is next is at 1.4 of it."""
MOST, SURE = 0.02, 0.1
"""Share of points in bursts that is passed over: most collections hold a few. Few points exceed it
by chance, as one pair of thirty does: it counts where that has at most the second probability."""


def are_many(count: int, compared: int) -> bool:
    """Return whether more than ``MOST`` of the compared points are ``count``, beyond chance.

    Examples
    --------
    >>> are_many(2, 30), are_many(4, 30)
    (False, True)
    """
    from scipy.special import bdtrc  # scipy.stats takes a second to import

    return bool(count > MOST * compared and bdtrc(count - 1, compared, MOST) <= SURE)


class Bursts(NamedTuple):
    """Bursts of some points.

    Parameters
    ----------
    size : Tensor [n] int64
        Number of points of the burst of each point, itself included; 0 for none.
    apart : Tensor [n] float64
        Distance to the farthest point of the burst, in distances of the next point of the class.
    radius : Tensor [n] float64
        Distance to the farthest point of the burst, in the unit of the points; 0 for none.
    """

    size: Int[Tensor, " n"]
    apart: Float[Tensor, " n"]
    radius: Float[Tensor, " n"]


def bursts(
    vectors: Float[Tensor, "N D"],
    codes: Int[Tensor, " M"],
    rows: Int[Tensor, " n"],
    others: Float[Tensor, "_ D"] | None = None,
) -> Bursts:
    """Find the burst of each of some points.

    Parameters
    ----------
    vectors : Tensor [N, D]
        Points whose Euclidean distances are compared.
    codes : Tensor [M]
        Class of each point, -1 for none, with those of ``others`` behind.
    rows : Tensor [n]
        Points whose burst is looked for, among all.
    others : Tensor [M - N, D] or None
        Further points, which may be a memory map and are read in blocks. None, the default: none.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> scenes = torch.randn(20, 8, generator=g).repeat_interleave(4, 0)
    >>> frames = scenes + 0.01 * torch.randn(80, 8, generator=g)
    >>> bursts(frames, torch.zeros(80).long(), torch.arange(80)).size.unique().tolist()
    [4]
    """
    codes = codes.to(vectors.device)
    gaps = torch.full((len(rows), LARGEST_BURST), torch.nan, dtype=torch.float64)
    steps = gaps.clone()
    for code in codes[rows].unique().tolist():
        members = (codes == code).nonzero().flatten()
        # d_1 to d_(b + 1) of the largest burst b - 1 that leaves as many of its class
        depth = min(LARGEST_BURST, len(members) // 2)
        if code < 0 or depth < 2:
            continue
        own = (codes[rows] == code).nonzero().flatten().cpu()
        found = _class_gaps(vectors[rows[own]], vectors, others, members, depth + 1)
        ratio = (found[:, 1:] / found[:, :-1]).log()
        steps[own, : depth - 1] = ratio.where(found[:, :-1] > 0, torch.nan).cpu()[:, : depth - 1]
        gaps[own, :depth] = found.cpu()
    scaled = steps * torch.arange(1, LARGEST_BURST + 1)
    usual = float(scaled[scaled.isfinite()].median()) if bool(scaled.isfinite().any()) else 0.0
    if usual <= 0:
        none = torch.zeros(len(rows), dtype=torch.long)
        return Bursts(none, torch.ones(len(rows)), none.double())
    largest, at = (scaled.nan_to_num(-1.0) * (math.log(2) / usual)).max(1)
    count = scaled.isfinite().sum(1)
    chance = -torch.expm1(count * torch.log1p(-torch.exp(-largest.clamp_min(0))))
    apart = torch.exp(-steps.nan_to_num(0.0).gather(1, at[:, None])[:, 0])
    one = (chance < RARE) & (apart < BURST_APART)
    radius = gaps.gather(1, at[:, None])[:, 0]
    return Bursts(torch.where(one, at + 2, 0), apart, torch.where(one, radius, 0.0))


def joined_bursts(
    vectors: Float[Tensor, "N D"], codes: Int[Tensor, " N"], found: Bursts
) -> Int[Tensor, " N"]:
    """Return the number of each point's burst, from 0: those whose radii reach each other have one.

    Parameters
    ----------
    vectors, codes : Tensor [N, D], [N]
        Points and their classes, as for ``bursts``.
    found : Bursts
        Bursts of all N points.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = list[Tensor]()
    for code in codes.unique().tolist():
        members = (codes == code).nonzero().flatten()
        near = torch.cdist(vectors[members].double(), vectors[members].double())
        radius = ROUNDED * found.radius.to(near)[members][:, None]
        a, b = (near <= radius).nonzero().unbind(1)
        ends.append(torch.stack([members[a], members[b]]))
    a, b = torch.cat(ends, 1).cpu().numpy()
    n = len(vectors)
    edges = coo_array(((a >= 0).astype("i1"), (a, b)), shape=(n, n))
    return torch.from_numpy(connected_components(edges, directed=False)[1]).long()


def _class_gaps(
    asked: Tensor, vectors: Tensor, others: Tensor | None, members: Tensor, k: int
) -> Float[Tensor, "q k"]:
    """Return distances to the k - 1 nearest others of the class, without the own one, the first.

    ``members`` are rows of the vectors and, behind them, of the others.
    """
    asked = asked.double()
    nearest = asked.new_empty(len(asked), 0)
    row_bytes = 16 * (asked.shape[1] + len(asked))
    most = len(members) if others is None else block_rows(row_bytes, LARGE_BYTES)
    for block in members.split(most):
        points = vectors[block[block < len(vectors)]]
        if others is not None:
            points = torch.cat([points, others[block[block >= len(vectors)] - len(vectors)]])
        gaps = torch.cat([nearest, torch.cdist(asked, points.double())], 1)
        nearest = gaps.topk(min(k, gaps.shape[1]), largest=False).values
    return nearest[:, 1:]
