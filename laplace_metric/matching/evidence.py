"""What is known of a pair before its labels are: its distance, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.matching.hits import Hits

NAMES = ("distance", "spread", "uncertainty")
KINDS: dict[str, tuple[str, ...]] = {"distance": NAMES[:1], "all": NAMES}
"""What a probability may look at: the distance alone, as without a posterior, or everything."""


@dataclass(frozen=True)
class Evidence:
    """Of (query, neighbour) pairs.

    Parameters
    ----------
    values : Tensor [Q, k, 3], float64
        The distance of the means, the logarithms of its standard deviation and of the query's
        uncertainty; -inf where a posterior is certain.
    there : Tensor [Q, k]
        Whether there is a neighbour.
    """

    values: Tensor
    there: Tensor

    @classmethod
    def of(cls, hits: Hits) -> Evidence:
        """Of everything that was found."""
        there = hits.positions >= 0
        wide = hits.trace[:, None].expand_as(hits.distance)
        columns = [hits.distance, hits.distance_sd.log(), wide.log()]
        values = torch.stack([column.double() for column in columns], -1)
        return cls(torch.where(there[..., None], values, 0.0), there)

    def take(self, rows: Tensor, k: int) -> Evidence:
        """Some queries and their k nearest neighbours."""
        return Evidence(self.values[rows, :k], self.there[rows, :k])

    def seen_as(self, kind: str, floor: Tensor) -> Tensor:
        """[Q, k, F] of one of ``KINDS``, no value below its ``floor`` [3]."""
        return self.values.maximum(floor.to(self.values))[..., : len(KINDS[kind])]
