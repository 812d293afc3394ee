"""Variance of each coordinate of an uncertain direction about its mean direction.

For ``d = z/|z|``, ``z ~ N(m, C)``, in units of |m| with ``u = m`` of length 1, the moments of d are
integrals over t, with the mass L of ``exp(-t |z|^2)``, ``K = (I + 2 t C)^-1`` and ``S = I - K``:

    E (d_k - u_k)^2 = (E d_k^2 - u_k^2) + 2 u_k (u_k - E d_k)
    E d = 1 / sqrt(pi) int t^(-1/2) L K u dt        E d d^T = int L (K u u^T K + K C) dt

With ``K u = u - S u``, ``c = 1 / (1 + tr C)`` and ``l = exp(-t / c) - L``, no difference of large
terms is left: relative errors are below 1e-6 down to ``tr C = FIRST_ORDER``, where those of the
first order, the tangent covariance, are as small.

    E (d_k - u_k)^2 = u_k^2 [(1 - sqrt(c))^2 + int l (2 / sqrt(pi t) - 1) dt]
                      + 2 u_k [int L (1 / sqrt(pi t) - 1) S u dt]_k
                      + int L (S u)_k^2 dt + [int L K C dt]_kk

for ``int exp(-t / c) (2 / sqrt(pi t) - 1) dt = 2 sqrt(c) - c``. The rule is for ``t / c``, so that
the length of a mean near 0 does not count.

In the eigenbasis Q of C, all but the squares of ``S u = Q s`` take one product with Q. The squares
of the n points of the rule would take n products: s(t) is a smooth function of t and an eigenvalue,
so that few combinations of its points hold all of them (``_combinations``).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.distributions._covariance import turned
from laplace_metric.distributions._half_line import half_line
from laplace_metric.distributions._round_chord import log_of_product

FIRST_ORDER = 1e-6
"""Trace of C, in units of ``|m|^2``, below which the tangent covariance is as exact."""
NUMBERS = 2**16
"""Coordinates whose integrals are held at once."""
FACTORS = 8
"""Eigenvalues whose determinant takes one logarithm."""
NEGLIGIBLE = 1e-17
"""Mass of a point of the rule, after the first unit, from which the others are left out."""
TOLERANCE, GRID = 1e-8, 64
"""Relative error of what combinations leave out; number of eigenvalues where it is measured."""
LINEAR = 1e-10
"""Share of an eigenvalue in 1 + tr C below which S is 2 t C at every point with a mass."""


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
    if mean.numel() == 0:
        return torch.zeros_like(mean)
    squared = None if basis is None else basis.mT.square()
    back = [None if basis is None else basis.mT, squared]
    rows = max(1, NUMBERS // mean.shape[1])
    parts = []
    for start in range(0, len(mean), rows):
        part = slice(start, start + rows)
        each = [b[part] if b is not None and b.ndim == 3 else b for b in back]
        parts.append(_integrated(mean[part], eigenvalues[part], *each))
    return torch.cat(parts)


def _integrated(
    mean: Tensor, eigenvalues: Tensor, back: Tensor | None, squared: Tensor | None
) -> Tensor:
    """Return the variances of some rows; ``back`` is Q^T, ``squared`` its squared entries."""
    trace = eigenvalues.sum(1)
    unit = 1 / (1 + trace)
    share = eigenvalues * unit[:, None]
    points, s, exponent = _points(mean, share, unit)  # [n, 2, 1], [n, B, Z], [n, B]
    t, weight = (points * unit).unbind(1)  # [n, B] each
    left = torch.exp(-points[:, 0])
    mass = torch.exp(exponent - points[:, 0])
    near = -left * torch.expm1(exponent.clamp_max(0.5))
    lost = torch.where(exponent < 0.5, near, left - mass)
    root = 1 / (math.pi * t).sqrt()
    kept, first = weight * mass, weight * mass * (root - 1)
    of_mass, of_first = torch.einsum("cnb,nbz->cbz", torch.stack([kept, first]), s)
    u = turned(mean, back)
    rest = (trace * unit / (1 + unit.sqrt())).square()  # (1 - sqrt(c))^2
    along = (rest + (weight * lost * (2 * root - 1)).sum(0))[:, None] * u.square()
    across = 2 * u * turned(mean * of_first, back)
    within = turned(eigenvalues * (kept.sum(0)[:, None] - of_mass), squared)
    if back is None:
        squares = torch.einsum("nb,nbz->bz", kept, s.square()) * mean.square()
    else:
        squares = _squares(mean, s, back, kept, _combinations(points[:, 0], kept / unit, share))
    return (along + across + squares + within).clamp_min(0)


def _points(mean: Tensor, share: Tensor, unit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points that have a mass, the diagonal of S and ``log L + t / c`` at them.

    A point is t / c and its weight, c is ``unit``, and ``share`` are eigenvalues times c.
    """
    square, spread, points = mean.square(), share.sum(1), []
    diagonals, exponents = [], []
    for t, weight in half_line():
        scaled = 2 * t * share
        s = scaled / (1 + scaled)
        exponent = t * (spread + unit * (s * square).sum(1)) - _log_determinant(scaled) / 2
        points.append((t, weight))
        diagonals.append(s)
        exponents.append(exponent)
        if t > 1 and bool((weight * torch.exp(exponent.clamp_min(0) - t) < NEGLIGIBLE).all()):
            break
    return mean.new_tensor(points)[:, :, None], torch.stack(diagonals), torch.stack(exponents)


def _log_determinant(w: Float[Tensor, "B Z"]) -> Float[Tensor, " B"]:
    """Return the sum of log(1 + w) over each row, by one logarithm for ``FACTORS`` entries.

    w is at most 2 t, some 6e11, so that their product stays finite.
    """
    padded = torch.nn.functional.pad(w, (0, -w.shape[1] % FACTORS))
    return log_of_product(padded.view(len(w), FACTORS, -1).transpose(0, 1)).sum(1)


def _combinations(t: Tensor, kept: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal combinations [n, r] of the points, and the scale of each point [n, 1].

    Projected on them, s of every eigenvalue, its points weighted by the square roots of their
    masses, is off by ``TOLERANCE`` of its length: the first r singular vectors of s at a grid of
    eigenvalues. ``t`` and ``share`` are in units of the rule.
    """
    scale = kept.detach().nan_to_num().amax(1, keepdim=True).sqrt()
    largest = float(share.detach().nan_to_num().amax().clamp_min(10 * LINEAR))
    grid = torch.logspace(math.log10(LINEAR), math.log10(largest), GRID).to(t)
    scaled = 2 * t * grid
    columns = torch.nn.functional.normalize(scaled / (1 + scaled) * scale, dim=0)
    vectors, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return vectors[:, : int((values > TOLERANCE * values[0]).sum())], scale


def _squares(
    mean: Tensor, s: Tensor, back: Tensor, kept: Tensor, combinations: tuple[Tensor, Tensor]
) -> Tensor:
    """Return ``int L (S u)_k^2 dt``: a quadratic form in r turned vectors for each input."""
    vectors, scale = combinations
    combined = (vectors * scale).mT @ s.flatten(1)  # [r, B Z]
    y = [turned(mean * one.view_as(mean), back) for one in combined]
    relative = kept / scale.square().clamp_min(torch.finfo(kept.dtype).tiny)
    form = torch.einsum("nb,nr,nq->rqb", relative, vectors, vectors)[..., None]
    total = torch.zeros_like(mean)
    for i, one in enumerate(y):
        before = sum((2 * form[i, k] * y[k] for k in range(i)), start=form[i, i] * one)
        total = total + one * before
    return total
