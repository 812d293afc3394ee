"""How typical a query is among those that have a match: the score of the test for "unknown".

    t = min over what is watched of  #{i : x_i >= x} / n

with x the best score (its negative), the query's uncertainty and its distance to the nearest item,
and x_i those of reference queries with a match. A stranger is extreme in one of the three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.matching.hits import Hits


@dataclass(frozen=True)
class Typical:
    """Reference values [3, n], ascending, of queries with a match."""

    reference: Tensor

    @classmethod
    def of(cls, watched: Tensor) -> Typical:
        """From what is watched [Q, 3]."""
        return cls(watched.mT.sort(1).values.contiguous())

    def __call__(self, watched: Tensor) -> Tensor:
        """t [Q] in [0, 1], small for a query like none of them."""
        reference = self.reference.to(watched)
        below = torch.searchsorted(reference, watched.mT.contiguous())
        return (1 - below.double() / reference.shape[1]).amin(0)


def watched(hits: Hits, logit: Tensor) -> Tensor:
    """What is watched of each query [Q, 3], from its scores [Q, k]."""
    nearest = hits.distance[:, : logit.shape[1]].amin(1)
    columns = [-logit.amax(1), hits.trace, nearest]
    return torch.stack([column.double() for column in columns], 1)
