"""Highest-density credible caps: the smallest set with a given probability is ``{z: mu.z >= t}``.

    P(angle <= a) = int_0^a f,   f(a) = |S^(D-2)| C_D(k) exp(k cos a) sin^(D-2) a

(The paper prints ``z.mu <= t``, which is the complement.) The quantile is found by
Newton's method inside a shrinking bracket. Nothing here has a gradient.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.validation import as_tensor, check_broadcast, check_floating
from laplace_metric.distributions._angles import (
    Angle,
    falls_towards_pi,
    mode_and_deviation,
    outwards,
)
from laplace_metric.distributions._location_concentration import squared_chord
from laplace_metric.distributions._power_spherical import log_sphere_area
from laplace_metric.distributions._vmf_normalizer import check_vmf_arguments, log_vmf_peak
from laplace_metric.distributions._von_mises_fisher import VonMisesFisher
from laplace_metric.errors import InputError

STEPS, TOLERANCE = 100, 1e-14


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
        For a probability outside [0, 1], and as ``log_vmf_normalizer``.

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


def in_cap(
    p: VonMisesFisher, value: Float[Tensor, "*V D"], probability: Float[Tensor, " ..."] | float
) -> Bool[Tensor, " ..."]:
    """[...] bool: whether unit vectors [..., D] lie in the credible cap of p.

    By ``|z - mu|^2 <= 4 sin^2(a/2)``, which keeps its digits in a narrow cap.

    Raises
    ------
    InputError
        For another distribution, or vectors of another length.

    Examples
    --------
    >>> mu = torch.tensor([1.0, 0.0])
    >>> in_cap(VonMisesFisher(mu, 100.0), torch.stack([mu, -mu]), 0.95)
    tensor([ True, False])
    """
    if not isinstance(p, VonMisesFisher):
        raise InputError(f"p is a {type(p).__name__}: pass a VonMisesFisher.")
    check_floating("value", value, "[..., D]")
    check_broadcast(value=value.shape, p=p.loc.shape)
    half = cap_angle(p.concentration, p.dimension, probability) / 2
    return squared_chord(value, p.loc) <= 4 * half.sin().square()


def _quantile(k: Tensor, dimension: int, p: Tensor) -> Tensor:
    """Newton from the mode; the middle of the bracket where it leaves it."""
    low, high = torch.zeros_like(k), torch.full_like(k, math.pi)
    mode, deviation = mode_and_deviation(k, dimension)
    a = (mode + (deviation if dimension == 2 else 0)).clamp_max(3.0)
    for _ in range(STEPS):
        density, excess = _distribution_function(a, k, dimension, p)
        low, high = torch.where(excess < 0, a, low), torch.where(excess < 0, high, a)
        step = a - excess / density
        inside = (step > low) & (step < high)  # false for NaN
        new = torch.where(inside, step, (low + high) / 2)
        if bool(((new - a).abs() <= TOLERANCE * a).all()):
            return new
        a = new
    return a


def _distribution_function(
    a: Tensor, k: Tensor, dimension: int, p: Tensor
) -> tuple[Tensor, Tensor]:
    """f(a), and ``P(angle <= a) - p``: by the tail on the side on which f falls."""
    angle = Angle(a.cos(), a.sin())
    height = log_vmf_peak(k, dimension) - 2 * k * (a / 2).sin().square()  # log C + k cos a
    rim = log_sphere_area(dimension - 1)
    density = (height + rim + torch.special.xlogy(a.new_tensor(dimension - 2.0), angle.sine)).exp()
    tail = sum((n.weight * n.density for n in outwards(angle, k, dimension)), torch.zeros_like(a))
    tail = tail * density  # negative towards 0
    return density, torch.where(falls_towards_pi(angle, k, dimension), (1 - p) - tail, -tail - p)
