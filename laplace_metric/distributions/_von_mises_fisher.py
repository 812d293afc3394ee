"""Concentration and credible caps of the von Mises-Fisher distribution.

The smallest set with a given probability is ``{z: mu.z >= t}``:

    P(angle <= a) = int_0^a f,   f(a) = exp(k cos a) sin^(D-2) a / int_0^pi exp(k cos x) sin^(D-2) x

(The paper prints ``z.mu <= t``, which is the complement.) The quantile is found by
Newton's method inside a shrinking bracket. Nothing here has a gradient.

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

from laplace_metric._utils.validation import (
    as_tensor,
    check_broadcast,
    check_count,
    check_floating,
)
from laplace_metric.errors import InputError

STEPS, TOLERANCE = 100, 1e-14


class Angle(NamedTuple):
    """An angle in [0, pi] by its cosine and its sine, each with full relative accuracy near 0."""

    cosine: Tensor
    sine: Tensor


def check_vmf_arguments(value: Tensor, dimension: int, name: str = "concentration") -> None:
    """Raise ``InputError`` unless the value is a floating tensor and the dimension at least 2."""
    check_count("dimension", dimension, 2)
    check_floating(name, value)


def vmf_concentration(resultant: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Concentration from the mean resultant length, nearly: ``kappa = R (D - R^2) / (1 - R^2)``.

    Parameters
    ----------
    resultant : Tensor [...] in [0, 1]
        R, the length of the mean of unit vectors.
    dimension : int >= 2
        D, of the ambient space.

    Returns
    -------
    Tensor [...] in [0, inf]; inf at R = 1. (Sra 2012; Warburg et al. 2023, LAM, section D.)

    Raises
    ------
    InputError
        For a dimension below 2 or a length that is not floating.

    Examples
    --------
    >>> vmf_concentration(torch.tensor([0.0, 0.5]), 3)
    tensor([0.0000, 1.8333])
    """
    check_vmf_arguments(resultant, dimension, "resultant")
    return resultant * (dimension - resultant.square()) / (1 - resultant.square())


def cap_cosine(
    concentration: Float[Tensor, " ..."],
    dimension: int,
    probability: Float[Tensor, " ..."] | float,
) -> Float[Tensor, " ..."]:
    """t with ``P(mu.z >= t) = probability`` under the von Mises-Fisher.

    Parameters
    ----------
    concentration : Tensor [...] in [0, inf)
    dimension : int >= 2
    probability : Tensor [...] or float in [0, 1]

    Returns
    -------
    Tensor [...] in [-1, 1]: 1 for an empty cap, -1 for the sphere.

    Raises
    ------
    InputError
        For a probability outside [0, 1], and as ``vmf_concentration``.

    Examples
    --------
    >>> cap_cosine(torch.tensor([10.0, 20.0]), 3, 0.5)  # 1 + log(1 - p) / k, up to e^(-2 k)
    tensor([0.9307, 0.9653])
    """
    return cap_angle(concentration, dimension, probability).cos()


@torch.no_grad()
def cap_angle(
    concentration: Float[Tensor, " ..."],
    dimension: int,
    probability: Float[Tensor, " ..."] | float,
) -> Float[Tensor, " ..."]:
    """The half-angle of the cap in [0, pi], to 1e-10 in float64; otherwise as ``cap_cosine``.

    Raises
    ------
    InputError
        As ``cap_cosine``.

    Examples
    --------
    >>> cap_angle(torch.tensor([0.0]), 2, 0.5)
    tensor([1.5708])
    """
    check_vmf_arguments(concentration, dimension)
    p = as_tensor("probability", probability).to(concentration.device, torch.float64)
    check_broadcast(concentration=concentration.shape, probability=p.shape)
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probability must lie in [0, 1].")
    k, p = torch.broadcast_tensors(concentration.double(), p)
    a = _quantile(k, dimension, p)
    a = torch.where(p == 0, 0.0, torch.where(p == 1, math.pi, a))
    return a.to(concentration.dtype)


def _quantile(k: Tensor, dimension: int, p: Tensor) -> Tensor:
    """Newton from the mode; the middle of the bracket where it leaves it."""
    low, high = torch.zeros_like(k), torch.full_like(k, math.pi)
    mode, deviation = mode_and_deviation(k, dimension)
    whole = _whole(mode, k, dimension)
    a = (mode + (deviation if dimension == 2 else 0)).clamp_max(3.0)
    for _ in range(STEPS):
        angle = Angle(a.cos(), a.sin())
        density = _relative_density(a, mode, k, dimension) / whole
        tail = density * _outer_mass(outwards(angle, k, dimension))  # negative towards 0
        excess = torch.where(falls_towards_pi(angle, k, dimension), (1 - p) - tail, -tail - p)
        low, high = torch.where(excess < 0, a, low), torch.where(excess < 0, high, a)
        step = a - excess / density
        inside = (step > low) & (step < high)  # false for NaN
        new = torch.where(inside, step, (low + high) / 2)
        if bool(((new - a).abs() <= TOLERANCE * a).all()):
            return new
        a = new
    return a


def _whole(mode: Tensor, k: Tensor, dimension: int) -> Tensor:
    """``int_0^pi density`` relative to the density at the mode."""
    angle, every = Angle(mode.cos(), mode.sin()), torch.ones_like(mode, dtype=torch.bool)
    below = _outer_mass(outwards(angle, k, dimension, ~every))
    return _outer_mass(outwards(angle, k, dimension, every)) - below


def _outer_mass(nodes: Iterator[QuadratureNode]) -> Tensor:
    """``int e`` of one side."""
    first = next(nodes)
    return sum((n.weight * n.density for n in nodes), first.weight * first.density)


def _relative_density(a: Tensor, mode: Tensor, k: Tensor, dimension: int) -> Tensor:
    """The density at a, relative to that at the mode: no difference of large numbers."""
    height = -2 * k * ((a + mode) / 2).sin() * ((a - mode) / 2).sin()  # k (cos a - cos mode)
    if dimension > 2:
        height = height + (dimension - 2) * (a.sin().log() - mode.sin().log())
    return height.exp()


NODES, WIDTHS = 48, 9.0  # of the quadrature; its range in standard deviations of the angle


class QuadratureNode(NamedTuple):
    """One node for every angle; each field has the shape of the angles."""

    weight: Tensor  # signed as the side: negative towards 0
    shift: Tensor  # cos(a + x) - cos a
    density: Tensor  # e(x)


@cache
def _nodes() -> tuple[tuple[float, float], ...]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
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
    """[...] bool: whether the quadrature runs to pi rather than to 0.

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
    """The nodes for angles and concentrations of the same shape, one after the other.

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
    """``cos(a+x) - cos a`` and e(x)."""
    w, s = angle
    sine, versine = x.sin(), 2 * (x / 2).sin().square()  # sin x and 1 - cos x
    shift = -w * versine - s * sine
    exponent = k * shift
    if dimension > 2:
        growth = w / s.clamp_min(torch.finfo(s.dtype).tiny) * sine - versine  # sin(a+x) / sin a - 1
        exponent = exponent + (dimension - 2) * torch.log1p(growth.clamp_min(-1))
    return shift, exponent.exp()
