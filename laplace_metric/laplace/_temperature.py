"""The temperature T of ``N(theta, T (n H + tau I)^-1)``: draws of heads that still retrieve.

T leaves every ranking by variance as it is, and says how far draws lie from the trained weights.
A contrastive loss does not know: its own scale is arbitrary, and pairs are not independent. So T is
the largest one up to 1, Laplace's approximation itself, at which draws keep what the head is for:

    T = max { t <= 1 : min (mean_s recall(theta_s, theta_s), mean_s recall(theta_s, theta))
                       >= recall(theta, theta) - .01 }                       theta_s ~ q_t

with recall(a, b) the share of fitted points, embedded by the weights a, whose nearest other fitted
point, embedded by b, is of their class.
"""

from __future__ import annotations

import math

import torch

from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace._draws import DrawnPoints

LOST = 0.01
"""Loss of recall that draws may have."""
COLDEST, HALVINGS = 2.0**-24, 7
"""Smallest T that is searched, and halvings of the range of log T."""


@full_precision()
@torch.no_grad()
def temperature_of(points: DrawnPoints) -> float:
    """Return the temperature of a fit; 1 where no class has two points.

    Costs sixteen products of draws of at most 1,000 embeddings: of four heads, or of up to sixteen
    where points are few.

    Parameters
    ----------
    points : DrawnPoints
        Points of the fit under heads that were drawn at temperature 1.
    """
    least = min(points.recalls(0.0)) - LOST
    if min(points.recalls(1.0)) >= least:
        return 1.0
    low, high = math.log2(COLDEST), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        keeps = min(points.recalls(2.0**middle)) >= least
        low, high = (middle, high) if keeps else (low, middle)
    return 2.0**low
