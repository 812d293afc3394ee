"""The nearest items of each query, and the distance to each.

The engine proposes by the vectors of a ranking (``_rankings``). Distances are then computed pair by
pair: those of the means, or of predictive vectors, which are the means of a larger space.

The nearest of the items that are left when some are passed over, others for each query.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import blocks
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.errors import FileFormatError, NonFiniteError
from laplace_metric.laplace import Distance
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._pair_distances import PairMoments
from laplace_metric.search.engines._engine import Engine
from laplace_metric.search.rank._rankings import Ranking

BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"
RowSearch = Callable[[Tensor, int], Tensor]
"""Vectors of the queries [Q, d] and k -> rows of the items [Q, k], or -1: ``Engine.search``."""


def nearest(
    search: RowSearch,
    queries: Encoded,
    items: Encoded,
    pairs: PairMoments,
    k: int,
    ranking: Ranking,
    stored: Float[Tensor, "N d"],
) -> SearchHits:
    """Return the k nearest items of each query, and their distances.

    ``stored``: vectors of the engine, which ``ranking`` made of the items.

    Raises
    ------
    FileFormatError
        If a saved index holds embeddings of another width than this model's.
    """
    width, found = queries.mean.shape[1], items.mean.shape[1]
    if width != found:
        raise FileFormatError(
            f"this index holds embeddings of {found} numbers, the model gives {width}: build the "
            "index again with this model."
        )
    depth = min(len(items), ranking.shortlist * k)
    asked = ranking.query_vectors(queries)
    positions = search(asked, depth).to(queries.mean.device)
    squared = pairs(queries, items, positions)
    if ranking.shortlist > 1:
        positions, squared = _reranked(positions, squared, k)
    centres = (asked, stored) if ranking.measures else (queries.mean, items.mean)
    distance = _distances(*centres, positions)
    _check_distances(distance, squared, positions)
    return SearchHits(
        positions.cpu().numpy(),
        _float64(distance),
        _float64(_deviation(squared, positions)),
        _float64(queries.trace),
        _float64(queries.epistemic),
    )


def _float64(numbers: Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = numbers.detach().cpu().double().numpy()
    return array


def _deviation(squared: Distance, positions: Tensor) -> Tensor:
    """Return the standard deviation of the distance [Q, k]: ``sd(d^2) / (2 sqrt(E d^2))``.

    The delta method about ``sqrt(E d^2)``: exact to first order where the distance is large
    against its error; for a distance that is all error, in r equal directions, 1 / (8 r) too
    large (a factor 1.17 at r = 1). 0 where E d^2 is 0, which rounding can put below 0; infinite
    where there is no neighbour.
    """
    there = squared.mean > 0
    spread = squared.standard_deviation / (2 * squared.mean.where(there, 1.0).sqrt())
    return spread.where(there, 0.0).masked_fill(positions < 0, torch.inf)


def _check_distances(distance: Tensor, squared: Distance, positions: Tensor) -> None:
    fine = distance.isfinite() & squared.mean.isfinite() & squared.variance.isfinite()
    bad = ~(fine | (positions < 0)).all(1)
    if bool(bad.any()):
        raise NonFiniteError(
            f"distances of {int(bad.sum())} of {len(bad)} queries overflow {distance.dtype}: "
            "scale the inputs of the index and the queries down, or use float64."
        )


def _reranked(positions: Tensor, squared: Distance, k: int) -> tuple[Tensor, Distance]:
    order = squared.mean.argsort(dim=1, stable=True)[:, :k]
    moments = (m.gather(1, order) for m in (squared.mean, squared.variance))
    return positions.gather(1, order), Distance(*moments)


def _distances(queries: Tensor, items: Tensor, positions: Tensor) -> Tensor:
    """Return distances [Q, k] from differences; infinite where there is no item."""
    distance = torch.full_like(positions, torch.inf, dtype=queries.dtype)
    for block in blocks(len(positions), positions.shape[1] * items[:1].nbytes):
        rows = positions[block].clamp(min=0).to(items.device)
        means, centre = items[rows].to(queries), queries[block, None]
        distance[block] = torch.cdist(centre, means, compute_mode=BY_DIFFERENCES)[:, 0]
    return distance.masked_fill(positions < 0, torch.inf)


CANDIDATE_BYTES = 2**27
"""Memory of the rows [q, m] of candidates that are looked through at once."""
PassedOver = Callable[[Int[Tensor, "q m"], slice], Bool[Tensor, "q m"]]
"""Function of rows [q, m], or -1, and the slice of the queries that found them.

It returns True for the rows that are to be passed over.
"""


def without_some(engine: Engine, passed_over: PassedOver, most: int) -> RowSearch:
    """Return a search that finds as many items more as may be passed over, and leaves these out.

    Parameters
    ----------
    engine : Engine
        The search that finds the candidates.
    passed_over : function
        Function that marks the candidates to leave out.
    most : int
        Largest number of items that are passed over for a query.
    """

    def search(queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the nearest of queries [Q, d]; -1 behind them where fewer than k are left."""
        depth = min(len(engine.vectors), k + most)
        parts = []
        for part in blocks(max(1, len(queries)), 8 * depth, CANDIDATE_BYTES):
            rows = engine.search(queries[part], depth)
            gone = passed_over(rows, part)
            order = gone.to(torch.uint8).argsort(dim=1, stable=True)[:, :k]  # those left first
            parts.append(rows.gather(1, order).masked_fill(gone.gather(1, order), -1))
        return torch.cat(parts)

    return search
