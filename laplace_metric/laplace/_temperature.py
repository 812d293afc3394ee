"""The temperature T of ``N(theta, T (n H + tau I)^-1)``: draws of heads that still retrieve.

T says how far draws lie from the trained weights. It leaves every ranking by the variance of
Euclidean embeddings as it is, and of directions nearly: theirs is bounded by 2.
A contrastive loss does not know: its own scale is arbitrary, and pairs are not independent. So T is
the largest one up to 1, Laplace's approximation itself, at which draws of embeddings stay well
inside of their class:

    T = min(1, MOVED r^2 / v)        r^2: ``_class_reach``

v is the variance at T = 1 of up to 500 points of the fit, as new points have it. With C' under the
posterior of ``_new_points`` and h_c the mean input of the n_c points of a class, which no point
determines by itself,

    v = mean_i tr C(h_i) + n_c / (n_c - 1) (tr (C' - C)(h_i) - tr (C' - C)(h_c))

(on the sphere, traces are those of the tangent space at z_i, in units of |z_i|^2). So the
``uncertainty`` of new inputs is about MOVED r^2, whatever the number of points: it falls as slowly
with N as the distance between neighbours does, where T = 1 would fall 200-fold from 100 points to
3,200. Nothing is drawn, and no threshold is searched: random subsets of as many points give nearly
the same size.

MOVED was chosen on seven networks and encoders (clothes, kanji, characters), in which draws lose a
recall of .015 on new queries at .2 to 2 times r^2.

Where no point was kept, or r^2 is 0, T is the one up to 1 at which directions without data vary as
much as the trained weights do: ``T / tau = |theta|^2 / P``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._new_points import as_new_points_see
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.laplace._prior_precision import of_trained_weights

MOVED = 0.08
"""Mean squared distance of draws of a new embedding, in units of the squared reach of a class."""
COLDEST = 2.0**-60
"""Smallest T that is chosen."""


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
def temperature_of(
    fitted: Fitted,
    features: Float[Tensor, "n D"],
    labels: Int[Tensor, " n"],
    n_terms: int,
    reach: float,
) -> float:
    """Return the temperature of a fit.

    Costs the covariances of n embeddings, three times.

    Parameters
    ----------
    fitted : Fitted
        Fit, at any temperature.
    features : Tensor [n, D]
        Inputs of the head at points of the fit, at least one.
    labels : Tensor [n]
        Class of each of them.
    n_terms : int
        Number of terms of the curvature for each output (``_new_points.n_terms``).
    reach : float > 0
        Squared reach r^2 of a class.
    """
    laplace = fitted.with_temperature(1.0)
    mean = float(variance_of_new_points(laplace, features, labels, n_terms).mean())
    # not above 1 where nothing varies, nor 0 where the variance overflows
    return max(COLDEST, min(1.0, MOVED * reach / mean)) if mean > 0 else 1.0


def variance_of_new_points(
    fitted: Fitted, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"], n_terms: int
) -> Float[Tensor, " n"]:
    """Return v_i [n] float64, the variance of a new point in the place of a fitted one, on average.

    Parameters
    ----------
    fitted : Fitted
        Fit, whose temperature counts.
    features : Tensor [n, D]
        Inputs of the head at points of the fit.
    labels : Tensor [n]
        Class of each of them.
    n_terms : int
        Number of terms of the curvature for each output.
    """
    h = features.to(fitted.posterior.mean)
    _, code, sizes = labels.unique(return_inverse=True, return_counts=True)
    means = h.new_zeros(len(sizes), h.shape[1]).index_add_(0, code, h) / sizes[:, None]
    center, n = means[code], sizes[code].double()
    z = fitted.jacobian.forward(h)
    posterior = fitted.posterior
    as_new = as_new_points_see(posterior, n_terms, fitted.head.n_outputs - fitted.spherical)

    def variance(at: Tensor, under: Posterior) -> Tensor:
        spread = covariance(fitted.jacobian, under, at)
        if not fitted.spherical:
            return spread.trace().double()
        tangent = spread.tangent_trace(nn.functional.normalize(z, dim=1))
        return tangent.double() / z.double().square().sum(1)

    plain = variance(h, posterior)
    more = variance(h, as_new) - plain - (variance(center, as_new) - variance(center, posterior))
    return plain + more * n / (n - 1).clamp_min(1)
