"""Gaussian noise by a generator, shared by the Gaussian and the projected normal."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian_draws(
    loc: Tensor, variance: Tensor, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """n independent draws [n, B, Z] of N(loc, diag(variance)), both [B, Z].

    Examples
    --------
    >>> gaussian_draws(torch.ones(1, 2), torch.zeros(1, 2), 3).unique()
    tensor([1.])
    """
    shape = (n, *loc.shape)
    noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
    return noise.mul_(variance.sqrt()).add_(loc)
