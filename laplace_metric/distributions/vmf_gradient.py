"""Gradient of a von Mises-Fisher angle to its concentration, by implicit reparameterisation.

A draw w at a fixed quantile moves with k as (Figurnov et al. 2018, eq 5)

    dw/dk = -(dF/dk) / f = int_w^1 (t - A) f(t) dt / f(w)        F the distribution function of w

in angles, ``w = cos a`` and ``t = cos(a + x)``:

    da/dk = -int_(-a)^0 (cos(a+x) - A) e(x) dx = int_0^(pi-a) (cos(a+x) - A) e(x) dx
    log e(x) = k (cos(a+x) - cos a) + (D-2) log(sin(a+x) / sin a)

the whole integral being zero. Taken over the side on which e falls, cut where e is below 1e-16.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from laplace_metric.distributions.vmf_cosine import Angle
from laplace_metric.distributions.vmf_normalizer import mean_resultant_length

NODES, WIDTHS = 48, 9.0  # of the quadrature; its range in standard deviations of the angle


def differentiable_angle(angle: Angle, concentration: Tensor, dimension: int) -> Angle:
    """The same angle as a function of the concentration, which has its shape.

    Examples
    --------
    >>> k = torch.tensor([2.0], requires_grad=True)
    >>> w = differentiable_angle(Angle(torch.zeros(1), torch.ones(1)), k, 3).cosine
    >>> torch.autograd.grad(w.sum(), k)
    (tensor([0.3808]),)
    """
    return Angle(*_ImplicitAngle.apply(*angle, concentration, dimension))


@cache
def _nodes() -> tuple[tuple[float, float], ...]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, weight = np.polynomial.legendre.leggauss(NODES)
    return tuple(zip((0.5 + x / 2).tolist(), (weight / 2).tolist(), strict=True))


def angle_slope(angle: Angle, concentration: Tensor, dimension: int) -> Tensor:
    """da/dk [...] for angles and concentrations of the same shape.

    Examples
    --------
    >>> quarter = Angle(torch.zeros(1), torch.ones(1))
    >>> angle_slope(quarter, torch.zeros(1), 2)  # f is flat: -int_0^(pi/2) cos = -1
    tensor([-1.])
    """
    k, a = concentration, torch.atan2(angle.sine, angle.cosine)
    mode, deviation = _mode(k, dimension)
    falling = (a - mode) > deviation  # e falls towards pi, otherwise it is taken towards 0
    room = torch.where(falling, math.pi - a, a)
    reach = torch.minimum(room, WIDTHS * deviation) * torch.where(falling, 1.0, -1.0)
    resultant = mean_resultant_length(k, dimension)
    total = torch.zeros_like(a)
    for x, weight in _nodes():
        total += weight * _integrand(x * reach, angle, k, resultant, dimension)
    return total * reach


def _integrand(x: Tensor, angle: Angle, k: Tensor, resultant: Tensor, dimension: int) -> Tensor:
    """``(cos(a+x) - A) e(x)``."""
    w, s = angle
    sine, versine = x.sin(), 2 * (x / 2).sin().square()  # sin x and 1 - cos x
    shift = -w * versine - s * sine  # cos(a+x) - cos a
    exponent = k * shift
    if dimension > 2:
        growth = w / s * sine - versine  # sin(a+x)/sin(a) - 1
        exponent = exponent + (dimension - 2) * torch.log1p(growth.clamp_min(-1))
    return (w - resultant + shift) * exponent.exp()


def _mode(k: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Where ``k cos a + (D-2) log sin a`` is largest, and ``(-its second derivative)^(-1/2)``.

    ``k sin^2 a = (D-2) cos a``: ``cos a = 2 k / (n + sqrt(n^2 + 4 k^2))``, ``n = D-2``.
    """
    n = float(dimension - 2)
    root = n + torch.hypot(2 * k, torch.full_like(k, n))
    cosine = 2 * k / root.clamp_min(1e-30)
    sine2 = 2 * n / root.clamp_min(1e-30)
    curvature = k * cosine + (root / 2 if n else 0)  # n / sin^2 a = root / 2
    return torch.atan2(sine2.sqrt(), cosine), curvature.clamp_min(0.1).rsqrt()


class _ImplicitAngle(torch.autograd.Function):
    """Identity of (cosine, sine); their gradient goes to the concentration."""

    @staticmethod
    def forward(
        ctx: Any, cosine: Tensor, sine: Tensor, concentration: Tensor, dimension: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cosine, sine, concentration)
        ctx.dimension = dimension
        return cosine.clone(), sine.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_cosine: Tensor, to_sine: Tensor) -> tuple[None, None, Tensor, None]:
        cosine, sine, concentration = ctx.saved_tensors
        slope = angle_slope(Angle(cosine, sine), concentration, ctx.dimension)
        return None, None, (cosine * to_sine - sine * to_cosine) * slope, None
