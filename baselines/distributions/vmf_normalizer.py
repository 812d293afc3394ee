"""The normalising constant of the von Mises-Fisher distribution and its derivatives.

    density of x on the sphere S^(D-1):  C_D(k) exp(k mu.x)
    log C_D(k)  = v log k - (D/2) log 2 pi - log I_v(k)   v = D/2 - 1   (Mardia & Jupp 9.3.4)
    A_D(k)      = I_(v+1)(k) / I_v(k) = -d/dk log C_D(k)           mean resultant length
    A'_D(k)     = 1 - A^2 - (D - 1) A / k

All are computed in float64 from ratios of Bessel functions (which need no such difference) and
returned in the dtype of the input.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from baselines.distributions.bessel_ratio import (
    bessel_ratio,
    bessel_ratio_over_k,
    bessel_ratio_slope,
    log_bessel_scaled,
)
from laplace_metric.distributions._von_mises_fisher import check_vmf_arguments


def log_vmf_normalizer(concentration: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Return ``log C_D(k)``, the density being ``C_D(k) exp(k mu.x)`` by surface measure.

    Parameters
    ----------
    concentration : Tensor [...] in [0, inf)
        Concentration k, in float32 or float64.
    dimension : int >= 2
        Dimension D of the ambient space.

    Returns
    -------
    Tensor [...], error below 1e-12 of max(1, value) in float64 for k up to 1e6; derivatives of
    every order by autograd.

    Raises
    ------
    InputError
        For a dimension below 2 or a concentration that is not floating.

    Examples
    --------
    >>> log_vmf_normalizer(torch.tensor([0.0, 1.0]), 3)  # -log 4 pi at 0
    tensor([-2.5310, -2.6925])
    """
    check_vmf_arguments(concentration, dimension)
    return _LogDensity.apply(concentration.double(), dimension, 0).to(concentration.dtype)


def log_vmf_peak(concentration: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Return ``log C_D(k) + k``, the log density at the mode: exact where they nearly cancel.

    Same arguments and errors as ``log_vmf_normalizer``.

    Examples
    --------
    >>> log_vmf_peak(torch.tensor([1e6]), 3)  # log(k / 2 pi)
    tensor([11.9776])
    """
    check_vmf_arguments(concentration, dimension)
    return _LogDensity.apply(concentration.double(), dimension, 1).to(concentration.dtype)


def mean_resultant_length(
    concentration: Float[Tensor, "*B"], dimension: int
) -> Float[Tensor, "*B"]:
    """Return ``A_D(k)`` in [0, 1): the length of the mean of the distribution, ``E[x] = A mu``.

    Same arguments and errors as ``log_vmf_normalizer``.

    Examples
    --------
    >>> mean_resultant_length(torch.tensor([0.0, 1.0, 1e6]), 3)
    tensor([0.0000, 0.3130, 1.0000])
    """
    check_vmf_arguments(concentration, dimension)
    return _Resultant.apply(concentration.double(), dimension).to(concentration.dtype)


def mean_resultant_slope(concentration: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Return ``A'_D(k)``, the variance of the cosine ``mu.x``: 1/D at k = 0.

    Same arguments and errors as ``log_vmf_normalizer``.

    Examples
    --------
    >>> mean_resultant_slope(torch.tensor([0.0, 1e3]), 3)
    tensor([3.3333e-01, 1.0000e-06])
    """
    check_vmf_arguments(concentration, dimension)
    return bessel_ratio_slope(concentration.double(), dimension / 2 - 1).to(concentration.dtype)


def log_vmf_normalizer_of_square(
    square: Float[Tensor, "*B"], dimension: int
) -> Float[Tensor, "*B"]:
    """Return ``log C_D`` at ``k = sqrt(square)``, with derivative ``-A/(2 k)``: smooth at 0.

    Same errors as ``log_vmf_normalizer``.

    Examples
    --------
    >>> square = torch.zeros(1, requires_grad=True)
    >>> torch.autograd.grad(log_vmf_normalizer_of_square(square, 5).sum(), square)  # -1 / (2 D)
    (tensor([-0.1000]),)
    """
    check_vmf_arguments(square, dimension, "square")
    return _LogOfSquare.apply(square.double(), dimension).to(square.dtype)


class _Elementwise(torch.autograd.Function):
    """A function of a tensor [...] and of numbers; ``backward`` reads its inputs."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.numbers = inputs[1:]


class _LogDensity(_Elementwise):
    """``log C + k c`` at the cosine c, 0 or 1; derivative ``c - A``."""

    @staticmethod
    def forward(k: Tensor, dimension: int, cosine: int) -> Tensor:
        flat = dimension / 2 * math.log(2 * math.pi)
        return (cosine - 1) * k - log_bessel_scaled(k, dimension / 2 - 1) - flat

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (k,), (dimension, cosine) = ctx.saved_tensors, ctx.numbers
        return grad * (cosine - mean_resultant_length(k, dimension)), None, None


class _LogOfSquare(_Elementwise):
    """log C of k^2; derivative ``-(A/k)/2``."""

    @staticmethod
    def forward(square: Tensor, dimension: int) -> Tensor:
        return log_vmf_normalizer(square.sqrt(), dimension)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (square,), (dimension,) = ctx.saved_tensors, ctx.numbers
        return -grad / 2 * bessel_ratio_over_k(square, dimension / 2 - 1), None


class _Resultant(_Elementwise):
    """A; derivative ``A'``."""

    @staticmethod
    def forward(k: Tensor, dimension: int) -> Tensor:
        return bessel_ratio(k, dimension / 2 - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (k,), (dimension,) = ctx.saved_tensors, ctx.numbers
        return grad * mean_resultant_slope(k, dimension), None


def log_sphere_area(dimension: int) -> float:
    """Return ``log(2 pi^(D/2) / Gamma(D/2))``, of the unit sphere in R^D.

    Examples
    --------
    >>> round(log_sphere_area(3), 4)  # log 4 pi
    2.531
    """
    half = dimension / 2
    return math.log(2) + half * math.log(math.pi) - math.lgamma(half)
