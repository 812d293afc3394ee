"""Features of each pair of a query and a neighbour, and statistics of each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.errors import NonFiniteError

FEATURES = (
    *("distance", "spread", "rank"),
    *("share", "weighted", "ratio", "ambiguity", "epistemic", "class_model"),
)
FEATURE_SETS: dict[str, list[int]] = {
    "distance": [0, 2],
    "all": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "portable": [0, 2, 3, 4, 5, 6, 7],
}
"""What a probability may use: distance and rank, or everything.

"portable" is everything but what no other engine knows: the deviation of a distance, and what the
class model of the gallery says.
"""

TRUSTED = 4
"""How often the epistemic number counts next to the distance and the ambiguity."""
LIKE_FITTED = 0.5
"""Largest median epistemic number of queries that are like the points of a fit."""


@dataclass(frozen=True)
class PairFeatures:
    """Features of (query, hit) pairs: of an index (``of``), or of scores (``score_features``).

    Parameters
    ----------
    values : [Q, k, F], float64
        Values of the features, 0 where there is no hit. Of an index those of ``FEATURES``: the
        distance of the means; the logarithms of its standard deviation and of the neighbour's rank;
        the vote of the labels of ``VOTES`` neighbours (``LabelVotes``; 0 without labels); the
        query's epistemic number; the log odds of the neighbour's label by the class model (0
        without).
    exists : [Q, k]
        True where there is a hit.
    """

    values: Float[np.ndarray, "Q k F"]
    exists: Bool[np.ndarray, "Q k"]

    @classmethod
    def of(cls, hits: SearchHits) -> PairFeatures:
        """Compute the features of every hit.

        Raises
        ------
        NonFiniteError
            For NaN among them, which would be no probability.
        """
        with np.errstate(divide="ignore"):  # log 0 of what is certain, which a score bounds
            values, exists = pair_features(hits)
        if (missing := np.isnan(values)).any():
            query, _, feature = np.argwhere(missing)[0]
            rows = int(missing.any((1, 2)).sum())
            raise NonFiniteError(
                f"evidence {FEATURES[feature]!r} of query {query} is NaN ({rows:,} queries): check "
                "the distances, their deviations and the epistemic numbers of these queries."
            )
        return cls(values, exists)

    def take(self, k: int) -> PairFeatures:
        """Return the features of the k nearest neighbours."""
        return self.at(slice(k))

    def at(self, places: slice) -> PairFeatures:
        """Return the features of these places of each list."""
        return PairFeatures(self.values[:, places], self.exists[:, places])

    def of_queries(self, rows: npt.NDArray[np.int_]) -> PairFeatures:
        """Return the features of these queries [q]."""
        return PairFeatures(self.values[rows], self.exists[rows])


def pair_features(hits: SearchHits) -> tuple[Any, Any]:
    """Return values [Q, k, F] and which pairs exist [Q, k], as arrays or as tensors."""
    xp, votes = namespace(hits.distance), hits.votes
    none = xp.zeros_like(hits.distance)
    rank = xp.ones_like(hits.distance).cumsum(1)
    columns = [hits.distance, xp.log(hits.distance_sd), xp.log(rank)]
    if votes is None:
        columns += [none] * 4
    else:
        columns += [votes.share, votes.weighted, votes.ratio, votes.ambiguity[:, None] + none]
    columns.append(hits.epistemic[:, None] + none)
    columns.append(none if votes is None or votes.class_odds is None else votes.class_odds)
    exists = hits.positions >= 0
    return xp.where(exists[..., None], xp.stack(columns, -1), 0.0), exists


def query_statistics(hits: SearchHits) -> Any:
    """Compute statistics [Q, 3] that are larger for queries unlike any before.

    They are the distance of the nearest item, the query's epistemic number, and the ambiguity of
    its neighbours' labels (0 without labels).
    """
    xp = namespace(hits.distance)
    ambiguity = xp.zeros_like(hits.epistemic) if hits.votes is None else hits.votes.ambiguity
    return xp.stack([xp.amin(hits.distance, 1), hits.epistemic, ambiguity], 1)


def epistemic_weight(known: Float[np.ndarray, "m 3"]) -> int:
    """Return how often the epistemic number counts among ``query_statistics``, by known queries.

    It says how far a query is from the points that the posterior was fitted to, in deviations of a
    point that is left out. Where the known queries are like these points, and all classes of the
    fit are in the index, it is the best of the three and counts ``TRUSTED`` times. Where they are
    not, as in a gallery of other classes, it is one of three.

    Examples
    --------
    >>> known = np.array([[1.0, -0.4, 0.0], [2.0, 0.1, 0.3], [1.5, 0.6, 0.2]])
    >>> epistemic_weight(known), epistemic_weight(known + [0, 3, 0])
    (4, 1)
    """
    like_fitted = len(known) > 0 and float(np.median(known[:, 1])) <= LIKE_FITTED
    return TRUSTED if like_fitted else 1


def statistic_weights(epistemic: int | None) -> tuple[int, int, int]:
    """Return how often each of ``query_statistics`` counts; None is once."""
    return 1, epistemic or 1, 1
