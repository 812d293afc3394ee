"""The temperature T of ``N(theta, T (n H + tau I)^-1)``: draws of heads that still retrieve.

T says how far draws lie from the trained weights. It leaves every ranking by the variance of
Euclidean embeddings as it is, and of directions nearly: theirs is bounded by 2.
A contrastive loss does not know: its own scale is arbitrary, and pairs are not independent. So T is
the largest one up to 1, Laplace's approximation itself, at which draws keep what the head is for:

    T = max { t <= 1 : R(theta) - R(theta_t) <= .01 },        R = P(m > 0) = Phi(mean m / std m)

with the margin m of a point: how much farther the nearest point of another class is than the
nearest other one of its own, under the trained weights theta, or under theta_t ~ q_t, among draws
of the same head or among embeddings of theta. The recall R is that of normal margins: two moments
of all points decide, not the few points whose neighbours change, so that other points of the same
kind give nearly the same T. Points are chosen by their content (``compared_points``).

Where no point was kept, or none has others of its class and of another, T is the one up to 1 at
which directions without data vary as much as the trained weights do: ``T / tau = |theta|^2 / P``.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace._draws import DrawnPoints
from laplace_metric.laplace._prior_precision import of_trained_weights

LOST = 0.01
"""Loss of recall that draws may have."""
COLDEST, TRIED, SURE = 2.0**-24, 24, 1e-4
"""Smallest T that is searched, most values that are tried, and the relative error of the loss."""


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

    Costs about ten pairs of products of eight draws of at most 500 embeddings, or of up to sixteen
    draws where points are few.

    Parameters
    ----------
    points : DrawnPoints
        Points of the fit under heads that were drawn at temperature 1, at least one.
    """
    recall = recall_of(points.margins(0.0))

    def lost(t: float) -> float:
        return float((recall - recall_of(points.margins(t))).max())

    low, high, power = COLDEST, 1.0, 1.0
    t, loss = 1.0, lost(1.0)
    if loss <= LOST:
        return 1.0
    for _ in range(TRIED):
        # the secant of log loss over log t: where little is lost, it is a power of t
        guess = t * (LOST / loss) ** (1 / power) if loss > 0 else high
        before = t, loss
        t = guess if low < guess < high else (low * high) ** 0.5
        loss = lost(t)
        low, high = (t, high) if loss <= LOST else (low, t)
        if abs(loss / LOST - 1) < SURE or high < (1 + SURE) * low:
            break
        if min(loss, before[1]) > 0:
            power = max(0.5, math.log(loss / before[1]) / math.log(t / before[0]))
    return t


def recall_of(margins: Float[Tensor, "2 s n"]) -> Float[Tensor, " 2"]:
    """Return the recall ``Phi(mean / std)`` of normal margins, for each of the two searches.

    Examples
    --------
    >>> recall_of(torch.tensor([[[0.0, 2.0]], [[-1.0, 1.0]]]))
    tensor([0.8413, 0.5000])
    """
    m = margins.flatten(1)
    deviation = m.std(1, correction=0).clamp_min(torch.finfo(m.dtype).tiny)
    return torch.special.ndtr(m.mean(1) / deviation)
