"""The angle a between a von Mises-Fisher vector and its mean direction: draws, integrals, gradient.

    density of w = cos a:  f(w) prop to exp(k w) (1 - w^2)^((D-3)/2)            on [-1, 1]
    density of a:          prop to exp(k cos a) sin^(D-2) a                     on [0, pi]

Exact draws by Wood's rejection (1994), from a beta envelope B of Ulrich (1984):

    b    = (D-1) / (2 k + sqrt(4 k^2 + (D-1)^2))     for every k: b -> 1 at k = 0
    B    ~ Beta((D-1)/2, (D-1)/2)                    d = 1 - (1-b) B
    1-w  = 2 b B / d                                 1+w = 2 (1-B) / d
    keep if  k (w - x) + (D-1) log((1+b) / (2 d)) >= log u
             w - x = 2 b (1 - 2 B) / ((1+b) d)       x = (1-b)/(1+b), w at the mode of f/envelope

No term cancels at large k. D = 3 has an inverse: ``1 - w = -log(1 - u (1 - e^(-2k))) / k``.

Integrals from a outwards, relative to the density at a:

    e(x) = density(a + x) / density(a)
    log e(x) = k (cos(a+x) - cos a) + (D-2) log(sin(a+x) / sin a)

The density falls towards pi if a lies beyond its mode, else (up to one standard deviation) towards
0. Gauss-Legendre runs over that side and stops where e is below 1e-16: nothing overflows, and a
tail keeps its relative accuracy.

Gradient to the concentration by implicit reparameterisation (Figurnov et al. 2018, eq 5). A draw
at a fixed quantile moves with k as

    dw/dk = -(dF/dk) / f = int_w^1 (t - A) f(t) dt / f(w)        F the distribution function of w
    da/dk = int_0^(pi-a) (cos(a+x) - A) e(x) dx = -int_(-a)^0 (cos(a+x) - A) e(x) dx

by ``w = cos a``, ``t = cos(a + x)``; the integral over both sides is zero. The usual path, through
b of Wood's proposal alone, leaves out what the rejection does and is 5 to 44 % short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.distributions._vmf_normalizer import check_vmf_arguments, mean_resultant_length


class Angle(NamedTuple):
    """An angle in [0, pi] by its cosine and its sine, each with full relative accuracy near 0."""

    cosine: Tensor
    sine: Tensor


def sample_angle(
    concentration: Float[Tensor, " ..."],
    dimension: int,
    generator: Seed = None,
) -> Angle:
    """One exact draw for each concentration, in float64 and without gradient.

    Parameters
    ----------
    concentration : Tensor [...] in [0, inf)
    dimension : int >= 2
    generator : torch.Generator or seed, optional

    Raises
    ------
    InputError
        For arguments of another type.

    Examples
    --------
    >>> angle = sample_angle(torch.tensor([1e6]), 3, torch.Generator().manual_seed(0))
    >>> bool(angle.cosine > 0.9999), bool(angle.sine > 0)
    (True, True)
    """
    check_vmf_arguments(concentration, dimension)
    generator, k = as_generator(generator), concentration.detach().double()
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
    refused = (~keep).nonzero()[:, 0]
    while len(refused):
        below[refused], above[refused], keep = _propose(k[refused], dimension, g)
        refused = refused[~keep]
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
    angle: Angle, concentration: Float[Tensor, "*B"], dimension: int
) -> Iterator[QuadratureNode]:
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


def differentiable_angle(
    angle: Angle, concentration: Float[Tensor, " ..."], dimension: int
) -> Angle:
    """The same angle as a function of the concentration, which has its shape.

    Examples
    --------
    >>> k = torch.tensor([2.0], requires_grad=True)
    >>> w = differentiable_angle(Angle(torch.zeros(1), torch.ones(1)), k, 3).cosine
    >>> torch.autograd.grad(w.sum(), k)
    (tensor([0.3808]),)
    """
    return Angle(*_ImplicitAngle.apply(*angle, concentration, dimension))


def angle_slope(
    angle: Angle, concentration: Float[Tensor, "*B"], dimension: int
) -> Float[Tensor, "*B"]:
    """da/dk [...] for angles and concentrations of the same shape.

    Examples
    --------
    >>> quarter = Angle(torch.zeros(1), torch.ones(1))
    >>> angle_slope(quarter, torch.zeros(1), 2)  # f is flat: -int_0^(pi/2) cos = -1
    tensor([-1.])
    """
    offset = angle.cosine - mean_resultant_length(concentration, dimension)
    total = torch.zeros_like(offset)
    for weight, shift, density in outwards(angle, concentration, dimension):
        total += weight * density * (offset + shift)
    return total


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
