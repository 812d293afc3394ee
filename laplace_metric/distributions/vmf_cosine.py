"""Exact draws of the angle between a von Mises-Fisher vector and its mean direction.

    density of w = cos(angle):  f(w) prop to exp(k w) (1 - w^2)^((D-3)/2)       on [-1, 1]

Wood's rejection (1994), from a beta envelope B of Ulrich (1984):

    b    = (D-1) / (2 k + sqrt(4 k^2 + (D-1)^2))     for every k: b -> 1 at k = 0
    B    ~ Beta((D-1)/2, (D-1)/2)                    d = 1 - (1-b) B
    1-w  = 2 b B / d                                 1+w = 2 (1-B) / d
    keep if  k (w - x) + (D-1) log((1+b) / (2 d)) >= log u
             w - x = 2 b (1 - 2 B) / ((1+b) d)       x = (1-b)/(1+b), w at the mode of f/envelope

No term cancels at large k. D = 3 has an inverse: ``1 - w = -log(1 - u (1 - e^(-2k))) / k``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Angle(NamedTuple):
    """An angle in [0, pi] by its cosine and its sine, each with full relative accuracy near 0."""

    cosine: Tensor
    sine: Tensor


def sample_angle(
    concentration: Tensor, dimension: int, generator: torch.Generator | None = None
) -> Angle:
    """One exact draw for each concentration, in float64 and without gradient.

    Parameters
    ----------
    concentration : Tensor [...] in [0, inf)
    dimension : int >= 2
    generator : torch.Generator, optional

    Examples
    --------
    >>> angle = sample_angle(torch.tensor([1e6]), 3, torch.Generator().manual_seed(0))
    >>> bool(angle.cosine > 0.9999), bool(angle.sine > 0)
    (True, True)
    """
    k = concentration.detach().double()
    flat = k.flatten()
    draw = _inverse if dimension == 3 else _rejection
    below, above = draw(flat, dimension, generator)  # 1 - w and 1 + w
    cosine = torch.where(below < above, 1 - below, above - 1)
    return Angle(cosine.view(k.shape), (below * above).sqrt().view(k.shape))


def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """In [0, 1)."""
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _inverse(k: Tensor, _: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """D = 3."""
    k = k.clamp_min(1e-200)  # the quotient has its limit 2 u long before
    below = -torch.log1p(_uniform(k, generator) * torch.expm1(-2 * k)) / k
    below = below.clamp(0, 2)
    return below, 2 - below


def _rejection(k: Tensor, dimension: int, g: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Propose for all, then again for those that were refused, until none is left."""
    below, above, keep = _propose(k, dimension, g)
    left = (~keep).nonzero()[:, 0]
    while len(left):
        new_below, new_above, keep = _propose(k[left], dimension, g)
        below[left], above[left] = new_below, new_above
        left = left[~keep]
    return below, above


def _propose(k: Tensor, dimension: int, g: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - w``, ``1 + w`` and whether to keep."""
    n = dimension - 1
    b = n / (2 * k + torch.hypot(2 * k, torch.full_like(k, n)))
    beta, rest = _symmetric_beta(k, dimension, g)
    d = rest + b * beta
    from_mode = 2 * b * (rest - beta) / ((1 + b) * d)
    log_ratio = k * from_mode + n * ((1 + b) / (2 * d)).log()
    keep = ~(log_ratio < _uniform(k, g).log())  # NaN passes through instead of looping
    return 2 * b * beta / d, 2 * rest / d, keep


def _symmetric_beta(
    like: Tensor, dimension: int, g: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """B and 1 - B for ``B = (1 + r cos(2 pi u)) / 2``, ``r^2 = 1 - v^(2/(D-2))`` (Ulrich 1984).

    For D = 2, r = 1 and ``B = cos^2(pi u)``.
    """
    turn = math.pi * _uniform(like, g)
    if dimension == 2:
        return turn.cos().square(), turn.sin().square()
    log_v = torch.log1p(-_uniform(like, g))  # of a uniform in (0, 1]
    r = (-torch.expm1(2 / (dimension - 2) * log_v)).sqrt()
    lean = r * (2 * turn).cos()
    return (1 + lean) / 2, (1 - lean) / 2
