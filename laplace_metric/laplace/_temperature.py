"""The temperature T of ``N(theta, T (n H + tau I)^-1)``: draws of heads that still retrieve.

T leaves every ranking by variance as it is, and says how far draws lie from the trained weights.
A contrastive loss does not know: its own scale is arbitrary, and pairs are not independent. So T is
the largest one up to 1, Laplace's approximation itself, at which draws keep what the head is for:

    T = max { t <= 1 : mean d <= max(.01, std(d) / sqrt n) },
    d_i = right_i(theta, theta) - mean_s right_i(theta_s, theta_s)    and with (theta_s, theta)

for theta_s ~ q_t, and right_i(a, b) = 1 if the nearest other fitted point, embedded by the weights
b, is of the class of point i, embedded by a. A loss within its standard error is none: among few
points the nearest of one or two would else set T.

Where no point was kept, or none has another one of its class, T is the one up to 1 at which
directions without data vary as much as the trained weights do: ``T / tau = |theta|^2 / P``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace._draws import DrawnPoints
from laplace_metric.laplace._prior_precision import of_trained_weights

LOST = 0.01
"""Loss of recall that draws may have among any number of points."""
COLDEST, HALVINGS = 2.0**-24, 7
"""Smallest T that is searched, and halvings of the range of log T."""


def without_points(prior_precision: float, mean: Tensor) -> float:
    """Return ``tau |theta|^2 / P``, up to 1: the temperature of a fit whose points are not kept.

    Examples
    --------
    >>> import torch
    >>> without_points(0.02, torch.tensor([3.0, -4.0]))
    0.25
    """
    return min(1.0, prior_precision / of_trained_weights(mean))


@full_precision()
@torch.no_grad()
def temperature_of(points: DrawnPoints) -> float:
    """Return the temperature of a fit.

    Costs sixteen products of draws of at most 1,000 embeddings: of four heads, or of up to sixteen
    where points are few.

    Parameters
    ----------
    points : DrawnPoints
        Points of the fit under heads that were drawn at temperature 1, at least one.
    """
    before = points.right(0.0)

    def keeps(t: float) -> bool:
        loss = before - points.right(t)
        noise = loss.std(-1, correction=0) / loss.shape[1] ** 0.5
        return bool((loss.mean(-1) <= noise.clamp_min(LOST)).all())

    if keeps(1.0):
        return 1.0
    low, high = math.log2(COLDEST), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(2.0**middle) else (low, middle)
    return 2.0**low
