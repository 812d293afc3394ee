"""Gaussian noise by a generator, shared by the Gaussian and the projected normal."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.distributions.covariance import Covariance


def gaussian_draws(
    loc: Tensor, covariance: Covariance, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """n independent draws [n, B, Z] of N(loc, C).

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance
    >>> gaussian_draws(torch.ones(1, 2), DiagonalCovariance(torch.zeros(1, 2)), 3).unique()
    tensor([1.])
    """
    shape = (n, *loc.shape)
    noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
    return covariance.color(noise).add_(loc)
