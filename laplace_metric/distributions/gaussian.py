"""A diagonal Gaussian over raw embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.distributions.draws import gaussian_draws
from laplace_metric.distributions.projected_normal import ProjectedNormal


@dataclass(frozen=True)
class DiagonalGaussian:
    """``z ~ N(loc, diag(scale_squared))`` for each of B inputs.

    Parameters
    ----------
    loc, scale_squared : Tensor [B, Z]

    Examples
    --------
    >>> DiagonalGaussian(torch.zeros(2, 3), torch.ones(2, 3)).sample(5).shape
    torch.Size([5, 2, 3])
    """

    loc: Tensor
    scale_squared: Tensor

    @property
    def mean(self) -> Tensor:
        """[B, Z]."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """[B, Z]."""
        return self.scale_squared

    @property
    def concentration(self) -> Tensor:
        """Of the direction z / |z| [B]."""
        return ProjectedNormal(self.loc, self.scale_squared).concentration

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """[n, B, Z]."""
        return gaussian_draws(self.loc, self.scale_squared, n, generator)

    def select(self, index: Tensor | slice) -> DiagonalGaussian:
        """The distributions at ``index``."""
        return DiagonalGaussian(self.loc[index], self.scale_squared[index])

    @classmethod
    def concatenate(cls, parts: Sequence[DiagonalGaussian]) -> DiagonalGaussian:
        """One batch out of several."""
        return cls(torch.cat([p.loc for p in parts]), torch.cat([p.scale_squared for p in parts]))
