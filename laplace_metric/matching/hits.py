"""What a search found: all that matching looks at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.distances import Distance


@dataclass(frozen=True)
class Hits:
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

    def nearest(self, k: int) -> Hits:
        """The first k of each query."""
        squared = Distance(self.squared.mean[:, :k], self.squared.variance[:, :k])
        return Hits(self.positions[:, :k], self.distance[:, :k], squared, self.trace)

    def take(self, rows: Tensor) -> Hits:
        """Those of some queries."""
        squared = Distance(self.squared.mean[rows], self.squared.variance[rows])
        return Hits(self.positions[rows], self.distance[rows], squared, self.trace[rows])
