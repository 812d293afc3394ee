"""Expected squared distance of an uncertain direction from its mean, from one trace.

For ``z ~ N(m, C)`` in Z dimensions with ``u = m / |m|``, and t the trace of the tangent covariance
``(I - u u^T) C (I - u u^T) / |m|^2``,

    E |z/|z| - u|^2 = 2 - 2 E cos            in [0, 2), t to first order

depends on all of C, but hardly on its form: it is computed for the round C of this t, with variance
``s^2 = t / (Z - 1)`` in units of |m|^2. Of posteriors it is within .1 % of the exact expectation
from Z = 8 on, and at Z = 3 while it is below .1. It grows with t, so it ranks as t does.

For a round C, ``1 / |z| = 2 / sqrt(pi) int_0^inf exp(-x^2 |z|^2) dx`` makes every coordinate a
Gaussian integral. With ``w = 2 x^2 s^2``

    E cos = 2 / sqrt(pi) int (1 + w)^(-Z/2 - 1) exp(-x^2 / (1 + w)) dx
    1     = 2 / sqrt(pi) int exp(-x^2) dx

whose difference loses no digits where t is small, and is taken up to t = 1:

    1 - E cos = -2 / sqrt(pi) int exp(-x^2) expm1(x^2 w / (1 + w) - (Z/2 + 1) log(1 + w)) dx

The integral is the trapezoidal rule after ``x = sinh(y) / sqrt(1 + t)``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

STEP, N_NODES = 0.2, 24
"""Grid of y: the integral is exact to 1e-6 from Z = 3 on, and to 1e-3 at Z = 2."""
_Y = STEP * np.arange(N_NODES)
NODES = list(
    zip(np.sinh(_Y).tolist(), (STEP * np.cosh(_Y) * (1 - (_Y == 0) / 2)).tolist(), strict=True)
)
"""(sinh y, weight) of each point of the rule."""


def round_chord(tangent_trace: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Return ``E |z/|z| - u|^2`` in [0, 2), of the tangent trace t >= 0; computed in float64.

    Infinite t, of an embedding without a direction, stays infinite.

    Parameters
    ----------
    tangent_trace : Tensor [...]
        Trace of the tangent covariance t.
    dimension : int
        Dimension Z of the embedding. In one dimension there is no tangent: t is 0.

    Examples
    --------
    >>> round_chord(torch.tensor([0.0, 0.01, 1.0]), 64)
    tensor([0.0000, 0.0099, 0.5900])
    """
    t = tangent_trace.double()
    shrunk, s2 = 1 / (1 + t), t / max(dimension - 1, 1)
    lost, kept = torch.zeros_like(t), torch.zeros_like(t)
    for x, weight in NODES:
        x2 = x * x * shrunk
        w = 2 * x2 * s2
        exponent = x2 * w / (1 + w) - (dimension / 2 + 1) * torch.log1p(w)
        # the difference itself where it is small, the two terms where an exponential is not
        near = -torch.exp(-x2) * torch.expm1(exponent.clamp_max(0.5))
        cosine = torch.exp(exponent - x2)
        lost = lost + weight * torch.where(exponent < 0.5, near, torch.exp(-x2) - cosine)
        kept = kept + weight * cosine
    unit = 4 / math.sqrt(math.pi) * shrunk.sqrt()
    # the grid follows E cos: where that is short, it ends before exp(-x^2) does
    chord = torch.where(t > 1, 2 - unit * kept, (unit * lost).clamp_min(0))
    return torch.where(t.isinf(), t, chord).to(tangent_trace.dtype)
