"""Variance of each coordinate of an uncertain direction about its mean direction.

For ``d = z/|z|``, ``z ~ N(m, C)``, in units of |m| with ``u = m`` of length 1, the moments of d are
integrals over t, with the mass L of ``exp(-t |z|^2)`` and ``K = (I + 2 t C)^-1``:

    E (d_k - u_k)^2 = (E d_k^2 - u_k^2) + 2 u_k (u_k - E d_k)
    E d = 1 / sqrt(pi) int t^(-1/2) L K u dt        E d d^T = int L (K u u^T K + K C) dt

Differences to u and u^2 are integrated, not subtracted: relative errors are below 1e-6 down to
``tr C = FIRST_ORDER``, where those of the first order, the tangent covariance, are as small.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.distributions._covariance import turned
from laplace_metric.distributions._half_line import half_line

FIRST_ORDER = 1e-6
"""Trace of C, in units of ``|m|^2``, below which the tangent covariance is as exact."""


def direction_variance(
    mean: Float[Tensor, "B Z"], eigenvalues: Float[Tensor, "B Z"], basis: Tensor | None
) -> Float[Tensor, "B Z"]:
    """Return ``E (d_k - u_k)^2`` of each coordinate [B, Z].

    Parameters
    ----------
    mean : Tensor [B, Z] float64
        Coordinates of u in the eigenbasis of C.
    eigenvalues : Tensor [B, Z] float64
        Eigenvalues of C in units of ``|m|^2``.
    basis : Tensor [Z, Z] or [B, Z, Z] float64, or None
        Eigenbasis Q. None is the identity.

    Examples
    --------
    >>> u, values = torch.tensor([[1.0, 0.0]]).double(), torch.full((1, 2), 0.25).double()
    >>> direction_variance(u, values, None)
    tensor([[0.0952, 0.2162]], dtype=torch.float64)
    """
    back = None if basis is None else basis.mT
    u = turned(mean, back)
    shift, second, within = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(u)
    for t, weight in half_line():
        k = 1 / (1 + 2 * t * eigenvalues)
        mass = torch.exp(k.log().sum(1) / 2 - t * (mean.square() * k).sum(1))[:, None]
        tilted, left = turned(mean * k, back), math.exp(-t)
        # differences to a direction without a spread, whose integrals are u and u^2
        shift = shift + weight / math.sqrt(math.pi * t) * (left * u - mass * tilted)
        second = second + weight * (mass * tilted.square() - left * u.square())
        within = within + weight * mass * k * eigenvalues
    within = turned(within, None if back is None else back.square())
    return (second + within + 2 * u * shift).clamp_min(0)
