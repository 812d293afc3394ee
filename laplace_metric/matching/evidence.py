"""What is known of a pair before its labels are: its distance, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.matching.hits import Hits

NAMES = ("distance", "spread", "uncertainty", "rank")
KINDS: dict[str, list[int]] = {"distance": [0, 3], "all": [0, 1, 2, 3]}
"""What a probability may look at: distance and rank, as without a posterior, or everything."""


@dataclass(frozen=True)
class Evidence:
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
    def of(cls, hits: Hits) -> Evidence:
        """Of everything that was found."""
        wide = hits.trace[:, None].expand_as(hits.distance)
        rank = torch.arange(1, hits.distance.shape[1] + 1, device=wide.device).expand_as(wide)
        columns = [hits.distance, hits.distance_sd.log(), wide.log(), rank.log()]
        values = torch.stack([column.double() for column in columns], -1)
        there = hits.positions >= 0
        return cls(torch.where(there[..., None], values, 0.0), there)

    def take(self, k: int) -> Evidence:
        """Of the k nearest neighbours."""
        return Evidence(self.values[:, :k], self.there[:, :k])
