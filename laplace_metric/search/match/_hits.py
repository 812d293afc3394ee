"""What a search found: all that matching looks at.

What is known of a pair before its labels are: its distance, and how sure that is.

How typical a query is among those that have a match: the score of the test for "unknown".

    t = min over what is watched of  #{i : x_i >= x} / n

with x the best score (its negative), the query's uncertainty and its distance to the nearest item,
and x_i those of reference queries with a match. A stranger is extreme in one of the three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
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

    positions: Tensor
    distance: Tensor
    squared: Distance
    trace: Tensor

    @property
    def distance_sd(self) -> Tensor:
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

    def take(self, rows: Tensor) -> SearchHits:
        """Those of some queries."""
        squared = Distance(self.squared.mean[rows], self.squared.variance[rows])
        return SearchHits(self.positions[rows], self.distance[rows], squared, self.trace[rows])


NAMES = ("distance", "spread", "uncertainty", "rank")
KINDS: dict[str, list[int]] = {"distance": [0, 3], "all": [0, 1, 2, 3]}
"""What a probability may look at: distance and rank, as without a posterior, or everything."""


@dataclass(frozen=True)
class PairFeatures:
    """Of (query, neighbour) pairs.

    Parameters
    ----------
    values : Tensor [Q, k, 4], float64
        The distance of the means; the logarithms of its standard deviation, of the query's
        uncertainty and of the neighbour's rank. -inf where a posterior is certain.
    there : Tensor [Q, k]
        Whether there is a neighbour.
    """

    values: Tensor
    there: Tensor

    @classmethod
    def of(cls, hits: SearchHits) -> PairFeatures:
        """Of everything that was found."""
        wide = hits.trace[:, None].expand_as(hits.distance)
        rank = torch.arange(1, hits.distance.shape[1] + 1, device=wide.device).expand_as(wide)
        columns = [hits.distance, hits.distance_sd.log(), wide.log(), rank.log()]
        values = torch.stack([column.double() for column in columns], -1)
        there = hits.positions >= 0
        return cls(torch.where(there[..., None], values, 0.0), there)

    def take(self, k: int) -> PairFeatures:
        """Of the k nearest neighbours."""
        return PairFeatures(self.values[:, :k], self.there[:, :k])


@dataclass(frozen=True)
class Nonconformity:
    """Reference values [3, n], ascending, of queries with a match."""

    reference: Tensor

    @classmethod
    def of(cls, watched: Tensor) -> Nonconformity:
        """From what is watched [Q, 3]."""
        return cls(watched.mT.sort(1).values.contiguous())

    def __call__(self, watched: Tensor) -> Tensor:
        """t [Q] in [0, 1], small for a query like none of them."""
        reference = self.reference.to(watched)
        below = torch.searchsorted(reference, watched.mT.contiguous())
        return (1 - below.double() / reference.shape[1]).amin(0)


def watched(hits: SearchHits, logit: Tensor) -> Tensor:
    """What is watched of each query [Q, 3], from its scores [Q, k]."""
    nearest = hits.distance[:, : logit.shape[1]].amin(1)
    columns = [-logit.amax(1), hits.trace, nearest]
    return torch.stack([column.double() for column in columns], 1)
