"""Quadrature of the von Mises-Fisher density over the angle to its mean.

Integrals from a outwards, relative to the density at a; the whole one from the mode, both ways:

    e(x) = density(a + x) / density(a)
    log e(x) = k (cos(a+x) - cos a) + (D-2) log(sin(a+x) / sin a)

The density falls towards pi if a lies beyond its mode, else (up to one standard deviation) towards
0. Gauss-Legendre runs over that side and stops where e is below 1e-16: nothing overflows, and a
tail keeps its relative accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Angle(NamedTuple):
    """Angle in [0, pi], by its cosine and its sine, each with full relative accuracy near 0."""

    cosine: Tensor
    sine: Tensor


NODES, WIDTHS = 48, 9.0
"""Nodes of the quadrature, and its range in standard deviations of the angle."""


class QuadratureNode(NamedTuple):
    """One node for every angle; each field has the shape of the angles."""

    weight: Tensor  # signed as the side: negative towards 0
    shift: Tensor  # cos(a + x) - cos a
    density: Tensor  # e(x)


@cache
def _nodes() -> tuple[tuple[float, float], ...]:
    """Return Gauss-Legendre nodes and weights on [0, 1]."""
    x, weight = np.polynomial.legendre.leggauss(NODES)
    return tuple(zip((0.5 + x / 2).tolist(), (weight / 2).tolist(), strict=True))


def mode_and_deviation(
    concentration: Float[Tensor, "*B"], dimension: int
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """Return the mode of ``k cos a + (D-2) log sin a``, and ``(-its second derivative)^(-1/2)``.

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


def falls_towards_pi(
    angle: Angle, concentration: Float[Tensor, "*B"], dimension: int
) -> Bool[Tensor, "*B"]:
    """Return True [...] where the quadrature runs to pi, False where it runs to 0.

    Examples
    --------
    >>> falls_towards_pi(Angle(torch.zeros(1), torch.ones(1)), torch.tensor([100.0]), 3)
    tensor([True])
    """
    mode, deviation = mode_and_deviation(concentration, dimension)
    return torch.atan2(angle.sine, angle.cosine) - mode > deviation


def outwards(
    angle: Angle,
    concentration: Float[Tensor, "*B"],
    dimension: int,
    falling: Bool[Tensor, "*B"] | None = None,
) -> Iterator[QuadratureNode]:
    """Yield the nodes for angles and concentrations of the same shape, one after the other.

    ``falling``: True where they run to pi, False to 0; None: where ``falls_towards_pi``.

    Examples
    --------
    >>> quarter = Angle(torch.zeros(1), torch.ones(1))
    >>> sum(n.weight * n.density for n in outwards(quarter, torch.zeros(1), 3))  # -int_0^(pi/2) sin
    tensor([-1.0000])
    """
    a = torch.atan2(angle.sine, angle.cosine)
    _, deviation = mode_and_deviation(concentration, dimension)
    if falling is None:
        falling = falls_towards_pi(angle, concentration, dimension)
    limit = torch.where(falling, math.pi - a, a)
    reach = torch.minimum(limit, WIDTHS * deviation) * torch.where(falling, 1.0, -1.0)
    for x, weight in _nodes():
        yield QuadratureNode(weight * reach, *_step(x * reach, angle, concentration, dimension))


def _step(x: Tensor, angle: Angle, k: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Return ``cos(a+x) - cos a`` and e(x)."""
    w, s = angle
    sine, versine = x.sin(), 2 * (x / 2).sin().square()  # sin x and 1 - cos x
    # cos(a + x) - cos a = -cos a (1 - cos x) - sin a sin x: no difference of two cosines
    shift = -w * versine - s * sine
    exponent = k * shift
    if dimension > 2:
        growth = w / s.clamp_min(torch.finfo(s.dtype).tiny) * sine - versine  # sin(a+x) / sin a - 1
        exponent = exponent + (dimension - 2) * torch.log1p(growth.clamp_min(-1))
    return shift, exponent.exp()
