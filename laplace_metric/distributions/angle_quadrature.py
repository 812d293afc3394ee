"""Integrals of the von Mises-Fisher angle density from a given angle outwards.

    density of the angle a:  prop to exp(k cos a) sin^(D-2) a        on [0, pi]
    e(x) = density(a + x) / density(a)
    log e(x) = k (cos(a+x) - cos a) + (D-2) log(sin(a+x) / sin a)

From a, the density falls towards pi if a lies beyond its mode, else (up to one standard deviation)
towards 0. Gauss-Legendre runs over that side and stops where e is below 1e-16: nothing overflows,
and a tail keeps its relative accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from laplace_metric.distributions.vmf_cosine import Angle

NODES, WIDTHS = 48, 9.0  # of the quadrature; its range in standard deviations of the angle


class Outwards(NamedTuple):
    """One quadrature node for every angle."""

    weight: Tensor  # signed as the side: negative towards 0
    shift: Tensor  # cos(a + x) - cos a
    density: Tensor  # e(x)


@cache
def _nodes() -> tuple[tuple[float, float], ...]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, weight = np.polynomial.legendre.leggauss(NODES)
    return tuple(zip((0.5 + x / 2).tolist(), (weight / 2).tolist(), strict=True))


def mode_and_deviation(concentration: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Where ``k cos a + (D-2) log sin a`` is largest, and ``(-its second derivative)^(-1/2)``.

    ``k sin^2 a = (D-2) cos a``: ``cos a = 2 k / (n + sqrt(n^2 + 4 k^2))``, ``n = D-2``.

    Examples
    --------
    >>> mode_and_deviation(torch.zeros(1), 3)  # sin a on [0, pi]
    (tensor([1.5708]), tensor([1.]))
    """
    k, n = concentration, float(dimension - 2)
    root = (n + torch.hypot(2 * k, torch.full_like(k, n))).clamp_min(1e-30)
    cosine, sine2 = 2 * k / root, 2 * n / root
    curvature = k * cosine + (root / 2 if n else 0)  # n / sin^2 a = root / 2
    return torch.atan2(sine2.sqrt(), cosine), curvature.clamp_min(0.1).rsqrt()


def falls_towards_pi(angle: Angle, concentration: Tensor, dimension: int) -> Tensor:
    """[...] bool: whether the quadrature runs to pi rather than to 0.

    Examples
    --------
    >>> falls_towards_pi(Angle(torch.zeros(1), torch.ones(1)), torch.tensor([100.0]), 3)
    tensor([True])
    """
    mode, deviation = mode_and_deviation(concentration, dimension)
    return torch.atan2(angle.sine, angle.cosine) - mode > deviation


def outwards(angle: Angle, concentration: Tensor, dimension: int) -> Iterator[Outwards]:
    """The nodes for angles and concentrations of the same shape, one after the other.

    Examples
    --------
    >>> quarter = Angle(torch.zeros(1), torch.ones(1))
    >>> sum(n.weight * n.density for n in outwards(quarter, torch.zeros(1), 3))  # -int_0^(pi/2) sin
    tensor([-1.0000])
    """
    a = torch.atan2(angle.sine, angle.cosine)
    _, deviation = mode_and_deviation(concentration, dimension)
    falling = falls_towards_pi(angle, concentration, dimension)
    room = torch.where(falling, math.pi - a, a)
    reach = torch.minimum(room, WIDTHS * deviation) * torch.where(falling, 1.0, -1.0)
    for x, weight in _nodes():
        yield Outwards(weight * reach, *_step(x * reach, angle, concentration, dimension))


def _step(x: Tensor, angle: Angle, k: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """``cos(a+x) - cos a`` and e(x)."""
    w, s = angle
    sine, versine = x.sin(), 2 * (x / 2).sin().square()  # sin x and 1 - cos x
    shift = -w * versine - s * sine
    exponent = k * shift
    if dimension > 2:
        growth = w / s.clamp_min(torch.finfo(s.dtype).tiny) * sine - versine  # sin(a+x) / sin a - 1
        exponent = exponent + (dimension - 2) * torch.log1p(growth.clamp_min(-1))
    return shift, exponent.exp()
