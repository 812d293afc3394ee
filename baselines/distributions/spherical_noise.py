"""Directions of a unit vector with independent noise: ``z = (mu + eps) / |mu + eps|``.

Gaussian noise of variance 1/k gives a density in closed form up to one integral (angular Gaussian):

    p(z) = (2 pi)^(-D/2) exp(-k (1 - c^2) / 2) J(c sqrt(k))          c = mu.z
    J(a) = int_0^inf r^n exp(-(r - a)^2 / 2) dr                      n = D - 1
    m^2 - a m = n,  r = m (1 + x):  J = m^(n+1) exp(-(m - a)^2 / 2) int_(-1)^inf e^(-g(x)) dx
    g(x) = m^2 x^2 / 2 + n (x - log(1 + x)),  m - a = n / m
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import constraints

from baselines.distributions.location_concentration import (
    LocationConcentration,
    finite_positive,
    squared_chord,
    unit_vector,
)

NODES = 64


def log_radial_integral(a: Float[Tensor, "*B"], n: int) -> Float[Tensor, "*B"]:
    """Return ``log J(a)`` [...] for float64 a, to 1e-10.

    The log-concave integrand is cut where g > 40: at ``x = -y`` and ``y + y^2/2``,
    ``y = 9 / sqrt(m^2 + n)``.

    Examples
    --------
    >>> log_radial_integral(torch.zeros(1, dtype=torch.float64), 3).exp()  # int r^3 e^(-r^2/2) = 2
    tensor([2.0000], dtype=torch.float64)
    """
    root = torch.hypot(a, torch.full_like(a, 2 * n**0.5))
    m = torch.where(a >= 0, (root + a) / 2, 2 * n / (root - a).clamp_min(1e-300))[..., None]
    y = 9 / (m.square() + n).sqrt()
    low, high = -y.clamp_max(1), y + y.square() / 2
    node, weight = (a.new_tensor(v) for v in np.polynomial.legendre.leggauss(NODES))
    x = low + (high - low) * (node + 1) / 2  # [..., NODES]
    g = m.square() * x.square() / 2 + n * (x - torch.log1p(x))
    area = ((-g).exp() * weight).sum(-1) * (high - low)[..., 0] / 2
    m = m[..., 0]
    return (n + 1) * m.log() - (n / m).square() / 2 + area.log()


class _Noisy(LocationConcentration):
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": unit_vector,
        "concentration": finite_positive,
    }

    def _add(self, noise: Tensor) -> Tensor:
        return nn.functional.normalize(self.loc + noise, dim=-1)


class SphericalGaussian(_Noisy):
    """Direction of ``mu + eps``, eps ~ N(0, I / k).

    Parameters
    ----------
    loc : Tensor [..., D] of unit length
        Direction mu before the noise.
    concentration : Tensor [...] in (0, inf)
        Concentration k, broadcast with loc's batch; one over the variance of the noise.
    validate_args : bool, optional
        Check both, and the values given to ``log_prob``. None, the default: as torch.distributions
        is set.

    Raises
    ------
    InputError, DtypeError, ValueError
        As ``LocationConcentration``.

    Examples
    --------
    >>> p = SphericalGaussian(torch.tensor([1.0, 0.0, 0.0]), 4.0)
    >>> p.sample((5,)).shape, p.log_prob(torch.tensor([1.0, 0.0, 0.0])).exp()
    (torch.Size([5, 3]), tensor(0.7949))
    """

    def _log_density(self, value: Tensor) -> Tensor:
        apart = squared_chord(value, self.loc).double() / 2  # 1 - c
        k = self.concentration.double()
        radial = log_radial_integral((1 - apart) * k.sqrt(), self.dimension - 1)
        tangent = -k * apart * (2 - apart) / 2  # 1 - c^2
        flat = -self.dimension / 2 * math.log(2 * math.pi)
        return (flat + tangent + radial).to(self.loc.dtype)

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        like, shape = self.loc, self._extended_shape(sample_shape)
        noise = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        return self._add(noise * self.concentration.rsqrt()[..., None])


class SphericalLaplace(_Noisy):
    """Direction of ``mu + eps``, every coordinate of eps Laplace with scale 1/k.

    Its density has no closed form. Parameters and errors as ``SphericalGaussian``.

    Examples
    --------
    >>> SphericalLaplace(torch.tensor([1.0, 0.0, 0.0]), 4.0).sample((5,)).shape
    torch.Size([5, 3])
    """

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        like, shape = self.loc, self._extended_shape(sample_shape)
        u = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
        u = (2 * u - 1).clamp_min(torch.finfo(like.dtype).eps - 1)  # (-1, 1)
        noise = -u.sign() * torch.log1p(-u.abs())
        return self._add(noise / self.concentration[..., None])
