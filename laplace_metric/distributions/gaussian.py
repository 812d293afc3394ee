"""A Gaussian over raw embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laplace_metric.distributions.covariance import Covariance, as_covariance
from laplace_metric.distributions.draws import gaussian_draws
from laplace_metric.distributions.projected_normal import ProjectedNormal


class Gaussian:
    """``z ~ N(loc, C)`` for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, Z]
    covariance : Covariance, or variances [B, Z] of independent coordinates

    Examples
    --------
    >>> Gaussian(torch.zeros(2, 3), torch.ones(2, 3)).sample(5).shape
    torch.Size([5, 2, 3])
    """

    def __init__(self, loc: Tensor, covariance: Tensor | Covariance) -> None:
        self.loc, self.covariance = loc, as_covariance(covariance)

    @property
    def mean(self) -> Tensor:
        """[B, Z]."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """[B, Z]."""
        return self.covariance.diagonal()

    @property
    def concentration(self) -> Tensor:
        """Of the direction z / |z| [B]."""
        return ProjectedNormal(self.loc, self.covariance).concentration

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """[n, B, Z]."""
        return gaussian_draws(self.loc, self.covariance, n, generator)

    def select(self, index: Tensor | slice) -> Gaussian:
        """The distributions at ``index``."""
        return Gaussian(self.loc[index], self.covariance.select(index))

    @classmethod
    def concatenate(cls, parts: Sequence[Gaussian]) -> Gaussian:
        """One batch out of several."""
        covariance = parts[0].covariance.concatenate([p.covariance for p in parts])
        return cls(torch.cat([p.loc for p in parts]), covariance)
