"""Near-copies among vectors with labels: frames of a video, photographs of one object.

A query that has its near-copy among the items finds it, as no new query does, so that what such
queries say about an index is too good. Two signs, each compared with points that lie evenly dense
around a vector, in m dimensions, whose neighbours are at the distances ``d_1 < d_2 < ...``:

    one copy     ``d_1 / d_10`` is below t with probability ``1 - (1 - t^m)^9``, about ``9 t^m``;
                 neighbours of any class, where the own one has 10; m from the median of
                 ``d_10 / d_20``, which is 2^(-1/m)
    a burst      one large step among the distances to its own class (``familiarity._bursts``)
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.errors import DependentQueriesWarning, callers_line
from laplace_metric.familiarity._bursts import RARE, are_many, bursts
from laplace_metric.search.engines._engine import Flat, FlatEngine
from laplace_metric.search.engines._found_shares import NEAREST, gaps_of, spread_rows

COMPARED = 500
"""Vectors that are compared with their neighbours."""
COPY_APART = 0.3
"""Largest distance of a copy in distances of the 10th neighbour: smaller ones are rare in many
dimensions, but harmless."""


@dataclass(frozen=True)
class NearCopies:
    """Near-copies among vectors.

    Parameters
    ----------
    share : float
        Share of the vectors that have a near-copy.
    size : int
        Median number of vectors that belong together; 0 where there are none.
    apart : float
        Median distance to the farthest of these, in distances to the next vector.
    compared : int
        Number of vectors that were compared.
    """

    share: float
    size: int = 0
    apart: float = 1.0
    compared: int = 0

    @property
    def are_many(self) -> bool:
        """True if more than 2 % of the vectors have one, beyond chance (exact binomial)."""
        return are_many(round(self.share * self.compared), self.compared)


def near_copies(
    vectors: Float[Tensor, "N D"],
    codes: Int[Tensor, " N"] | None,
    items: Float[Tensor, "M D"] | None = None,
    item_codes: Int[Tensor, " M"] | None = None,
) -> NearCopies:
    """Find the vectors that lie nearer to others than the density around them explains.

    Parameters
    ----------
    vectors : [N, D]
        Vectors whose Euclidean distances are compared.
    codes : [N] or None
        Class of each vector, -1 for none; None: only single copies are found.
    items, item_codes : [M, D] and [M], or None
        Further vectors, of which a vector may be a copy, an exact one too, and their classes.
        None, the default: none.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> scenes = torch.randn(80, 16, generator=g).repeat_interleave(5, 0)
    >>> frames = scenes + 0.1 * torch.randn(400, 16, generator=g)
    >>> found = near_copies(frames, torch.arange(400) // 20)
    >>> found.share, found.size
    (1.0, 5)
    """
    rows = spread_rows(len(vectors), COMPARED)
    if len(vectors) < 4:
        return NearCopies(0.0)
    vectors, total = vectors.detach(), len(vectors) + (0 if items is None else len(items))
    if total < COMPARED:
        vectors = vectors.double()
    if items is not None:  # they may be a memory map
        items = items.detach().to(vectors)
        if codes is not None:
            codes = None if item_codes is None else torch.cat([codes, item_codes.to(codes)])
    copied, apart = _copies(vectors, rows, items)
    size = copied.long() * 2
    if codes is not None:
        # in a smaller class the 10th neighbour is of another one, however even the class is
        size[~_of_large_classes(codes, rows).cpu()] = 0
        members, gap, _ = bursts(vectors, codes, rows, items)
        size, apart = torch.where(members > 0, members, size), torch.where(members > 0, gap, apart)
    found = size > 0
    if not bool(found.any()):
        return NearCopies(0.0)
    share = float(found.double().mean())
    middle = int(size[found].median()), float(apart[found].median())
    return NearCopies(share, *middle, len(found))


def warn_of_near_copies(
    vectors: Tensor,
    codes: Tensor | None,
    what: str,
    therefore: str,
    items: Tensor | None = None,
    item_codes: Tensor | None = None,
) -> bool:
    """Warn if more than 2 % of the vectors [N, D] have a near-copy, beyond chance; returns whether.

    Parameters
    ----------
    vectors : [N, D]
        Vectors whose Euclidean distances are compared.
    codes : [N] or None
        Class of each vector, as for ``near_copies``.
    what : str
        Name of the vectors in the message.
    therefore : str
        Last sentence of the message: the consequence, and what to do.
    items, item_codes : [M, D] and [M], or None
        Items, of which a vector may be a near-copy, and their classes. None, the default: none.

    Warns
    -----
    DependentQueriesWarning
        With their share, how many belong together, how near they are, and what to do.
    """
    found = near_copies(vectors, codes, items, item_codes)
    if not found.are_many:
        return False
    others = "others" if items is None else "items"
    warnings.warn(
        f"{found.share:.0%} of the {what} are near-copies of {others}, about {found.size} that "
        "belong together, such as frames of one video or photographs of one object: they lie at "
        f"{found.apart:.2g} of the distance of what comes next, far nearer than their surroundings "
        f"explain. {therefore}",
        DependentQueriesWarning,
        stacklevel=callers_line(),
    )
    return True


def _copies(
    vectors: Tensor, rows: Tensor, items: Tensor | None
) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """Return whether each compared vector has one copy, and its distance relative to the 10th.

    Both are in main memory, as the numbers of ``bursts`` are.
    """
    none = torch.zeros(len(rows), dtype=torch.bool), torch.ones(len(rows))
    if len(vectors) + (0 if items is None else len(items)) <= 2 * NEAREST:
        return none
    k = 2 * NEAREST + 1  # the first is its own
    gaps = gaps_of(FlatEngine(vectors, Flat()), vectors, vectors[rows], k)
    if items is not None:
        engine = FlatEngine(items, Flat(), mapped=True)  # read in blocks
        others = gaps_of(engine, items, vectors[rows], k)
        gaps = torch.cat([gaps, others], 1).sort(1).values[:, :k]
    gaps = gaps.cpu().double()
    first, inner, outer = gaps[:, 1], gaps[:, NEAREST], gaps[:, 2 * NEAREST]
    ratio = float((inner / outer)[outer > 0].median()) if bool((outer > 0).any()) else 1.0
    if not 0 < ratio < 1:
        return none
    most = min(COPY_APART, (RARE / (NEAREST - 1)) ** math.log(ratio, 0.5))
    apart = first / inner.clamp_min(torch.finfo(inner.dtype).tiny)
    exact = items is not None
    return ((first > 0) | exact) & (apart < most), apart


def _of_large_classes(codes: Tensor, rows: Tensor) -> Bool[Tensor, " n"]:
    """Return True for each compared vector whose class has 10 others."""
    _, at, count = codes.unique(return_inverse=True, return_counts=True)
    return (count[at] > NEAREST)[rows]
