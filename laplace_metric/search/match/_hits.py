"""Hits of a search, the features of each pair, and how like known queries a query is.

The conformity of a query among those that have a match, the score of the test for "unknown":

    t = min over three statistics x of  #{i : x_i >= x} / n

with x the best score (its negative), the query's uncertainty and its distance to the nearest item,
and x_i those of reference queries with a match. An out-of-distribution query is extreme in one of
the three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.laplace import Distance


@dataclass(frozen=True)
class SearchHits:
    """k neighbours of Q queries, as an engine and the posterior know them.

    Parameters
    ----------
    positions : Tensor [Q, k]
        Rows of the index, -1 where an approximate engine found fewer.
    distance : Tensor [Q, k]
        Euclidean distance between the mean embeddings, as any engine has it.
    squared : Distance [Q, k]
        Mean and variance of the squared distance under the weights that both share.
    trace : Tensor [Q]
        Uncertainty of each query.
    """

    positions: Int[Tensor, "Q k"]
    distance: Float[Tensor, "Q k"]
    squared: Distance
    trace: Float[Tensor, " Q"]

    @property
    def distance_sd(self) -> Float[Tensor, "Q k"]:
        """Standard deviation of the distance [Q, k]: ``sd(d^2) / (2 sqrt(E d^2))``.

        The delta method about ``sqrt(E d^2)``: exact to first order where the distance is large
        against its error; for a distance that is all error, in r equal directions, 1 / (8 r) too
        large (a factor 1.17 at r = 1). Infinite where there is no neighbour.
        """
        spread = self.squared.standard_deviation / (2 * self.squared.mean.sqrt())
        return spread.nan_to_num(posinf=torch.inf).masked_fill(self.positions < 0, torch.inf)

    def nearest(self, k: int) -> SearchHits:
        """The first k of each query."""
        squared = Distance(self.squared.mean[:, :k], self.squared.variance[:, :k])
        return SearchHits(self.positions[:, :k], self.distance[:, :k], squared, self.trace)

    def take(self, rows: Int[Tensor, " n"] | Bool[Tensor, " Q"]) -> SearchHits:
        """Those of some queries."""
        squared = Distance(self.squared.mean[rows], self.squared.variance[rows])
        return SearchHits(self.positions[rows], self.distance[rows], squared, self.trace[rows])


FEATURES = ("distance", "spread", "uncertainty", "rank")
FEATURE_SETS: dict[str, list[int]] = {"distance": [0, 3], "all": [0, 1, 2, 3]}
"""What a probability may look at: distance and rank, as without a posterior, or everything."""


@dataclass(frozen=True)
class PairFeatures:
    """Of (query, neighbour) pairs.

    Parameters
    ----------
    values : Tensor [Q, k, 4], float64
        The distance of the means; the logarithms of its standard deviation, of the query's
        uncertainty and of the neighbour's rank. -inf where a posterior is certain.
    exists : Tensor [Q, k]
        Whether there is a neighbour.
    """

    values: Float[Tensor, "Q k 4"]
    exists: Bool[Tensor, "Q k"]

    @classmethod
    def of(cls, hits: SearchHits) -> PairFeatures:
        """Of every hit."""
        trace = hits.trace[:, None].expand_as(hits.distance)
        rank = torch.arange(1, hits.distance.shape[1] + 1, device=trace.device).expand_as(trace)
        columns = [hits.distance, hits.distance_sd.log(), trace.log(), rank.log()]
        values = torch.stack([column.double() for column in columns], -1)  # [Q, k, 4]
        exists = hits.positions >= 0
        return cls(torch.where(exists[..., None], values, 0.0), exists)

    def take(self, k: int) -> PairFeatures:
        """Of the k nearest neighbours."""
        return PairFeatures(self.values[:, :k], self.exists[:, :k])


@dataclass(frozen=True)
class ConformityMeasure:
    """How like queries with a match a query is.

    Parameters
    ----------
    reference : Tensor [3, n]
        Statistics of n queries with a match, each row ascending.
    """

    reference: Float[Tensor, "3 n"]

    @classmethod
    def of(cls, statistics: Float[Tensor, "n 3"]) -> ConformityMeasure:
        """From those of the reference queries [n, 3]."""
        return cls(statistics.mT.sort(1).values.contiguous())

    def __call__(self, statistics: Float[Tensor, "Q 3"]) -> Float[Tensor, " Q"]:
        """t [Q] in [0, 1], small for a query like none of them."""
        reference = self.reference.to(statistics)
        below = torch.searchsorted(reference, statistics.mT.contiguous())  # [3, Q]
        return (1 - below.double() / reference.shape[1]).amin(0)


def query_statistics(hits: SearchHits, logit: Float[Tensor, "Q k"]) -> Float[Tensor, "Q 3"]:
    """[Q, 3]: the best score (its negative), the uncertainty, the distance of the nearest item."""
    nearest = hits.distance[:, : logit.shape[1]].amin(1)
    columns = [-logit.amax(1), hits.trace, nearest]
    return torch.stack([column.double() for column in columns], 1)
