"""Expected squared distance of an uncertain direction from its mean direction.

For ``z ~ N(m, C)`` in Z dimensions, in units of |m|, with ``u = m`` of length 1,

    E |z/|z| - u|^2 = 2 - 2 E cos,    cos = <z, u> / |z|            in [0, 2)

and ``1 / |z| = 2 / sqrt(pi) int_0^inf exp(-x^2 |z|^2) dx`` makes E cos a Gaussian integral. With
``K = (I + 2 x^2 C)^-1`` and ``g = 1 - u^T K u``

    E cos = 2 / sqrt(pi) int exp(e - x^2) dx,    e = x^2 g + log(1 - g) + log det(K) / 2
    1     = 2 / sqrt(pi) int exp(-x^2) dx

whose difference loses no digits where C is small, and is taken up to ``tr C = 1``:

    1 - E cos = -2 / sqrt(pi) int exp(-x^2) expm1(e) dx

The integral is the trapezoidal rule after ``x = sinh(y) / sqrt(1 + tr C)``: exact to 1e-6, and to
1e-4 at Z = 2. Three forms of C give g and the determinant:

    eigenvalues    ``spectral_chord``: the ``LARGEST`` as they are, the others by two of their
                   means, which keep the first order exact; within .3 % at any Z
    a matrix       ``dense_chord``: by elimination, up to Z = ``FEW``
    round          ``round_chord``: from the trace of the tangent covariance alone
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

STEP, N_NODES = 0.2, 32
"""Grid of y."""
LARGEST = 8
"""Number of eigenvalues that are not averaged."""
FEW = 16
"""Dimensions up to which a matrix C is eliminated; from its trace alone where there are more."""
ROWS = 1_024
"""Directions whose integrals are held at once."""
BELOW_ONE = 1 - 2.0**-52
Forms = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function of ``2 x^2`` [n, ...] that returns g and ``log det(K)``, [n, ...] each."""


def expected_chord(
    forms: Forms, trace: Float[Tensor, "*B"], tangent_trace: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """Return ``E |z/|z| - u|^2`` in [0, 2), in float64.

    Infinite where the tangent trace is, as of an embedding without a direction.

    Parameters
    ----------
    forms : function of ``2 x^2`` [n, ...]
        Function that returns g and ``log det(K)``, [n, ...] each, in float64.
    trace, tangent_trace : Tensor [...]
        ``tr C`` and ``tr C - u^T C u`` in units of ``|m|^2``, in float64.
    """
    y = STEP * np.arange(N_NODES)
    each = (-1, *(1 for _ in trace.shape))
    weight = torch.from_numpy(STEP * np.cosh(y) * (1 - (y == 0) / 2)).to(trace).view(each)
    shrunk = 1 / (1 + trace)
    x2 = torch.from_numpy(np.sinh(y) ** 2).to(trace).view(each) * shrunk
    g, log_det = forms(2 * x2)
    exponent = x2 * g + torch.log1p(-g.clamp_max(BELOW_ONE)) + log_det / 2
    # the difference itself where it is small, the two terms where an exponential is not
    whole, cosine = torch.exp(-x2), torch.exp(exponent - x2)
    near = -whole * torch.expm1(exponent.clamp_max(0.5))
    lost = (weight * torch.where(exponent < 0.5, near, whole - cosine)).sum(0)
    kept = (weight * cosine).sum(0)
    unit = 4 / math.sqrt(math.pi) * shrunk.sqrt()
    # the grid follows E cos: where that is short, it ends before exp(-x^2) does
    chord = torch.where(trace > 1, 2 - unit * kept, (unit * lost).clamp_min(0))
    return torch.where(tangent_trace.isinf(), tangent_trace, chord)


def spectral_chord(
    mean: Float[Tensor, "B Z"], eigenvalues: Float[Tensor, "B Z"]
) -> Float[Tensor, " B"]:
    """Return the expected squared distance for C with these eigenvalues.

    Parameters
    ----------
    mean : Tensor [B, Z]
        Coordinates of m in the eigenbasis of C, in any unit.
    eigenvalues : Tensor [B, Z]
        Eigenvalues of C, in the square of this unit.

    Examples
    --------
    >>> spectral_chord(torch.tensor([[2.0, 0.0]]), torch.tensor([[4.0, 4.0]]))
    tensor([0.8856])
    """
    squares, values = mean.double().square(), eigenvalues.double()
    length = squares.sum(1, keepdim=True)
    trace = (values.sum(1, keepdim=True) / length)[:, 0]
    squares, values = squares / length, values / length  # of u, and of C in units of |m|^2
    tangent = ((1 - squares).clamp_min(0) * values).sum(1)
    n_others, other, along = max(values.shape[1] - LARGEST, 0), None, (trace, trace)
    if n_others > 1:
        top, at = values.topk(LARGEST, 1)
        of_top = squares.gather(1, at)
        # the others: their mean eigenvalue in the determinant, and in g the one seen along u
        rest = (1 - of_top.sum(1)).clamp_min(0)
        seen = (trace - tangent - (of_top * top).sum(1)).clamp_min(0)
        along = seen / rest.clamp_min(torch.finfo(rest.dtype).tiny), rest
        other = ((trace - top.sum(1)) / n_others).clamp_min(0)
        squares, values = of_top, top
    squares, values = (x.mT.contiguous()[:, None] for x in (squares, values))  # [<= 9, 1, B]

    def forms(scale: Tensor) -> tuple[Tensor, Tensor]:
        w = scale * values
        g, log_det = (squares * (w / (1 + w))).sum(0), -log_of_product(w)
        if other is not None:
            w = scale * along[0]
            g += along[1] * (w / (1 + w))
            log_det -= n_others * torch.log1p(scale * other)
        return g, log_det

    tangent = torch.where(length[:, 0] == 0, trace, tangent)
    return expected_chord(forms, trace, tangent).to(eigenvalues.dtype)


def log_of_product(w: Float[Tensor, "m ..."]) -> Tensor:
    """Return the sum of log(1 + w) over the first dimension, by one logarithm for all of them.

    The product of 1 + w must be finite. Of ``LARGEST + 1`` eigenvalues it is: there w is at most
    2 sinh(y)^2, some 2e5.
    """
    while len(w) > 1:  # (1 + a) (1 + b) = 1 + (a + b + a b), which loses no digits of small ones
        half = len(w) // 2
        a, b = w[:half], w[half : 2 * half]
        w = torch.cat([a + b + a * b, w[2 * half :]])
    return torch.log1p(w[0])


def dense_chord(
    mean: Float[Tensor, "B Z"], covariance: Float[Tensor, "B Z Z"]
) -> Float[Tensor, " B"]:
    """Return the expected squared distance for a matrix C, at O(Z^3) for each node.

    Parameters
    ----------
    mean : Tensor [B, Z]
        Vectors m, in any unit.
    covariance : Tensor [B, Z, Z]
        Covariances C, in the square of this unit.

    Examples
    --------
    >>> dense_chord(torch.tensor([[2.0, 0.0]]), 4 * torch.eye(2)[None])
    tensor([0.8856])
    """
    length = mean.double().square().sum(1)
    u, c = mean.double() / length.sqrt()[:, None], covariance.double() / length[:, None, None]
    trace = covariance.diagonal(dim1=1, dim2=2).double().sum(1) / length
    seen = (c @ u[:, :, None])[:, :, 0]
    identity = torch.eye(c.shape[1], dtype=c.dtype, device=c.device)

    def forms(scale: Tensor) -> tuple[Tensor, Tensor]:
        # eliminate I + s C, with the column s C u to the right: g = u^T K (s C u)
        rows = torch.cat(
            [identity + scale[..., None, None] * c, (scale[..., None] * seen)[..., None]], -1
        )
        left, g, log_det = u, torch.zeros_like(scale), torch.zeros_like(scale)
        for _ in range(c.shape[1]):
            pivot, first = rows[..., 0, 0], rows[..., 1:, 0] / rows[..., :1, 0]
            log_det = log_det - pivot.log()
            g = g + left[..., 0] * rows[..., 0, -1] / pivot
            left = left[..., 1:] - left[..., :1] * first
            rows = rows[..., 1:, 1:] - first[..., None] * rows[..., :1, 1:]
        return g, log_det

    tangent = torch.where(length == 0, trace, trace - (u * seen).sum(1))
    return expected_chord(forms, trace, tangent).to(covariance.dtype)


def round_chord(tangent_trace: Float[Tensor, "*B"], dimension: int) -> Float[Tensor, "*B"]:
    """Return the expected squared distance for a round C, of its tangent trace t >= 0.

    C is ``t / (Z - 1) I`` in units of ``|m|^2``. It grows with t, so it ranks as t does.

    Parameters
    ----------
    tangent_trace : Tensor [...]
        Trace of the tangent covariance, ``(tr C - u^T C u) / |m|^2``.
    dimension : int
        Dimension Z of the embedding. In one dimension there is no tangent: t is 0.

    Examples
    --------
    >>> round_chord(torch.tensor([0.0, 0.01, 1.0]), 64)
    tensor([0.0000, 0.0099, 0.5900])
    """
    t = tangent_trace.double()
    variance = t / max(dimension - 1, 1)

    def forms(scale: Tensor) -> tuple[Tensor, Tensor]:
        w = scale * variance
        return w / (1 + w), -dimension * torch.log1p(w)

    return expected_chord(forms, t + variance, t).to(tangent_trace.dtype)
