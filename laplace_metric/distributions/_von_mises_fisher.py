"""Concentration and credible caps of the von Mises-Fisher distribution.

The smallest set with a given probability is ``{z: mu.z >= t}``:

    P(angle <= a) = int_0^a f,   f(a) = exp(k cos a) sin^(D-2) a / int_0^pi exp(k cos x) sin^(D-2) x

(The paper prints ``z.mu <= t``, which is the complement.) The quantile is found by
Newton's method inside a shrinking bracket. Nothing here has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import as_tensor, check_broadcast, check_count, check_floating
from laplace_metric.distributions._angle_quadrature import (
    Angle,
    QuadratureNode,
    falls_towards_pi,
    mode_and_deviation,
    outwards,
)
from laplace_metric.errors import InputError

STEPS, TOLERANCE = 100, 1e-14


def check_vmf_arguments(value: Tensor, dimension: int, name: str = "concentration") -> None:
    """Raise ``InputError`` unless the value is a floating tensor and the dimension at least 2."""
    check_count("dimension", dimension, 2)
    check_floating(name, value)


def vmf_concentration(resultant: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Estimate the concentration from the mean length: ``kappa = R (D - R^2) / (1 - R^2)``.

    Parameters
    ----------
    resultant : Tensor [...] in [0, 1]
        Length R of the mean of unit vectors.
    dimension : int >= 2
        Dimension D of the ambient space.

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
    """Return t with ``P(mu.z >= t) = probability`` under the von Mises-Fisher.

    Parameters
    ----------
    concentration : Tensor [...] in [0, inf)
        Concentration kappa of the distribution.
    dimension : int >= 2
        Dimension D of the ambient space.
    probability : Tensor [...] or float in [0, 1]
        Probability of the cap.

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
    """Return the half-angle of the cap in [0, pi], to 1e-10 in float64; see ``cap_cosine``.

    Parameters
    ----------
    concentration : Tensor [...] in [0, inf)
        Concentration kappa of the distribution.
    dimension : int >= 2
        Dimension D of the ambient space.
    probability : Tensor [...] or float in [0, 1]
        Probability of the cap.

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
    """Find the angle by Newton's method from the mode; bisect if a step leaves the bracket."""
    low, high = torch.zeros_like(k), torch.full_like(k, math.pi)
    mode, deviation = mode_and_deviation(k, dimension)
    whole = _whole(mode, k, dimension)
    a = (mode + (deviation if dimension == 2 else 0)).clamp_max(3.0)
    for _ in range(STEPS):
        angle = Angle(a.cos(), a.sin())
        density = _relative_density(a, mode, k, dimension) / whole
        # excess = P(angle <= a) - p, by the mass on the side where the density falls: a small tail
        # keeps its digits, as the difference to 1 would not
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
    """Return ``int_0^pi density`` relative to the density at the mode."""
    angle, every = Angle(mode.cos(), mode.sin()), torch.ones_like(mode, dtype=torch.bool)
    below = _outer_mass(outwards(angle, k, dimension, ~every))
    return _outer_mass(outwards(angle, k, dimension, every)) - below


def _outer_mass(nodes: Iterator[QuadratureNode]) -> Tensor:
    """Return ``int e`` of one side."""
    first = next(nodes)
    return sum((n.weight * n.density for n in nodes), first.weight * first.density)


def _relative_density(a: Tensor, mode: Tensor, k: Tensor, dimension: int) -> Tensor:
    """Return the density at a relative to the mode, without differences of large numbers."""
    height = -2 * k * ((a + mode) / 2).sin() * ((a - mode) / 2).sin()  # k (cos a - cos mode)
    if dimension > 2:
        height = height + (dimension - 2) * (a.sin().log() - mode.sin().log())
    return height.exp()
