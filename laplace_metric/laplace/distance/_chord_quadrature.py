"""Moments of the squared chord of two jointly Gaussian embeddings, by two small quadratures.

With ``c = N / sqrt(A B)``, ``N = <z_x, z_y>``, ``A = |z_x|^2``, ``B = |z_y|^2`` and, for w in
[-1, 1], the positive form ``Q_w = (1 + w) / 2 A + (1 - w) / 2 B``, the two square roots leave
through integrals over w and the denominator through one over t:

    1 / sqrt(A B) = 1/pi  int_-1^1 Q_w^-1 (1 - w^2)^-1/2 dw      Q^-1 = int_0^inf   e^(-t Q) dt
    1 / (A B)     = 1/2   int_-1^1 Q_w^-2 dw                     Q^-2 = int_0^inf t e^(-t Q) dt

(the ratios of quadratic forms of Magnus 1986, Annales d'Economie et de Statistique 4, in two
denominators). ``1 - c`` itself is integrated, so that a near pair loses no digits to ``1 - E c``.
With ``M_w = Q_w - N``, which is small where z_x is near z_y, and the averages ``<.>_a`` under
``(1 - w^2)^-1/2 / pi`` and ``<.>_u`` under 1/2, both of weight one, ``c = <1 - M / Q>_a`` and
``c^2 = <(1 - M / Q)^2>_u``, hence

    E (1 - c)   = < int E[M e^(-t Q)] dt >_a
    E (1 - c)^2 = < int t E[M^2 e^(-t Q)] dt >_u + 2 < int E[M e^(-t Q)] dt >_(a - u)

``e^(-t Q)`` times a Gaussian is a Gaussian of mass ``L``, ``M`` a quadratic form in it, so that
both expectations are closed forms: O(Z) where the covariances share a basis, one eigendecomposition
[2Z, 2Z] for each w elsewhere. Both vectors are first divided by their root mean square length,
which leaves c as it is and makes Q_w vary little in w: six Gauss-Legendre points (for the first
weight the interpolatory rule at the same points).

The integral over t is the double exponential rule of ``half_line``. Where a length can vanish, the
integrand has an algebraic tail. As ``|M| <= r Q`` with ``r = 1 + (1 - w^2)^-1/2`` and
``(1 + x) e^(-x) <= 1.22 e^(-x / 2)``, what is left out beyond T is at most

    1.22 max(r, r^2) E[e^(-T Q / 2)] <= 1.22 max(r, r^2) prod_j (1 + T l_j)^-1/2

with l_j the eigenvalues of the covariance of ``D^1/2 (z_x, z_y)``, ``Q = |D^1/2 (z_x, z_y)|^2``.
The slowest tail is that of a near pair in two dimensions, whose covariance has two eigenvalues of
about 1/2: 1 / T, and T is 3e11. Up to T = e^9, 1e-4 would be left out, more than the squared
distance of inputs 1 % apart.

The error that remains is that of the six points in w: ``benchmarks.costs.chords`` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from laplace_metric.distributions._half_line import half_line
from laplace_metric.laplace.distance._embedding_pairs import EmbeddingPairs, SpectralPairs

N_ANGLES = 6
"""Number of Gauss-Legendre points w."""


@cache
def _angles() -> list[tuple[float, float, float]]:
    """Return (w, weight under ``(1 - w^2)^-1/2 / pi``, weight under 1/2) of each point."""
    points, uniform = np.polynomial.legendre.leggauss(N_ANGLES)
    basis = np.polynomial.legendre.legvander
    chebyshev = np.cos((np.arange(4 * N_ANGLES) + 0.5) * math.pi / (4 * N_ANGLES))
    # the arcsine weights integrate every Legendre polynomial below degree N_ANGLES exactly; its
    # mean under the arcsine law is the average over Chebyshev points
    means = basis(chebyshev, N_ANGLES - 1).mean(0)
    arcsine = np.linalg.solve(basis(points, N_ANGLES - 1).T, means)
    return list(zip(points.tolist(), arcsine.tolist(), (uniform / 2).tolist(), strict=True))


Tilted = tuple[Tensor, Tensor, Tensor]
"""log L, and the mean and the variance of M under the tilted Gaussian, [B] each.

The tilted Gaussian has a density proportional to ``e^(-t Q)`` times that of (z_x, z_y).
"""


def exact_chord(pairs: EmbeddingPairs | SpectralPairs) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance [B] of the squared chord ``2 - 2 c``, in float64."""
    tilted: Callable[..., Iterator[Tilted]]
    if isinstance(pairs, SpectralPairs):
        tilted, parts = _spectral, _unit_length(*(v.double() for v in vars(pairs).values()))
    else:
        tilted, parts = _dense, _unit_joint(pairs)
    first = second = parts[0].new_zeros(len(parts[0]))
    for w, arcsine, uniform in _angles():
        for (t, weight), (log_mass, mean, variance) in zip(
            half_line(), tilted(w, *parts), strict=True
        ):
            # once: the integrand of E (1 - c); twice: that of <.>_u in E (1 - c)^2
            mass = weight * log_mass.exp()
            once, twice = mass * mean, t * mass * (mean.square() + variance)
            first = first + arcsine * once
            second = second + uniform * twice + 2 * (arcsine - uniform) * once
    # first = E (1 - c), second = E (1 - c)^2
    mean = (2 * first).clamp(0, 4)
    return mean.to(pairs.x), (4 * second - mean.square()).clamp_min(0).to(pairs.x)


def _unit_length(x: Tensor, y: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Return x, y, a, b, w [B, Z] scaled to ``E A = E B = 1``, and ``a b - w^2``."""
    p = (x.square() + a).sum(1, keepdim=True).rsqrt()
    q = (y.square() + b).sum(1, keepdim=True).rsqrt()
    x, y, a, b, w = x * p, y * q, a * p.square(), b * q.square(), w * p * q
    return x, y, a, b, w, (a * b - w.square()).clamp_min(0)


def _spectral(
    angle: float, x: Tensor, y: Tensor, a: Tensor, b: Tensor, w: Tensor, determinant: Tensor
) -> Iterator[Tilted]:
    """Yield the tilted moments for every t, from pairs in a shared basis, at O(Z) each.

    The coordinates are independent, so each has its own covariance [2, 2] of (x, y). In the
    eigenbasis of ``D^1/2 Sigma D^1/2``, with ``D = diag((1 + w) / 2, (1 - w) / 2)``, Q is the
    squared length and ``e^(-t Q)`` scales each eigenvalue l by ``k = 1 / (1 + 2 t l)`` and each
    mean by k. What does not depend on t is computed before the loop.
    """
    left, right = (1 + angle) / 2, (1 - angle) / 2
    x, y, cross = math.sqrt(left) * x, math.sqrt(right) * y, math.sqrt(left * right) * w
    half_gap = (left * a - right * b) / 2
    largest = (left * a + right * b) / 2 + half_gap.hypot(cross)
    # the product of the eigenvalues is the determinant: no difference that could cancel
    smallest = left * right * determinant / largest.where(largest > 0, 1.0)
    # angle of the rotation that makes the [2, 2] matrix diagonal
    turn = torch.atan2(cross, half_gap) / 2
    cos, sin = turn.cos(), turn.sin()
    eigenvalues = torch.stack([largest, smallest], 1)
    center = torch.stack([cos * x + sin * y, cos * y - sin * x], 1)
    # M = z' F z with F = [[f_1, off], [off, f_2]]; N has 1 / (2 sqrt(left right)) off the diagonal
    longer = (2 * turn).sin() / (2 * math.sqrt(left * right))
    off = -(2 * turn).cos() / (2 * math.sqrt(left * right))
    f = torch.stack([1 - longer, 1 + longer], 1)
    # moments of a quadratic form z' F z under N(m, diag(s)):
    #     E   = sum_i f_i (s_i + m_i^2) + 2 off m_1 m_2
    #     Var = 2 sum_i f_i^2 s_i^2 + 4 sum_i f_i^2 s_i m_i^2                (squares, cubes)
    #         + 4 off^2 s_1 s_2 + 8 off m_1 m_2 (f_1 s_1 + f_2 s_2)          (both, mixed)
    #         + 4 off^2 (s_1 m_2^2 + s_2 m_1^2)                              (mixed)
    # with s = l k and m = c k, so that each factor s or m carries one factor k
    c_c, l_l = center.prod(1), eigenvalues.prod(1)
    lengths = center.square()
    once, twice = f * eigenvalues, f * lengths
    squares, cubes = 2 * once.square(), 4 * once * twice
    mixed = (
        8 * once * (off * c_c)[:, None] + 4 * eigenvalues.flip(1) * lengths * off.square()[:, None]
    )
    both, means = 4 * off.square() * l_l, 2 * off * c_c
    for t, _ in half_line():
        k = 1 / (1 + 2 * t * eigenvalues)
        product = k[:, 0] * k[:, 1]
        log_mass = product.log().sum(1) / 2 - t * (lengths * k).sum((1, 2))
        expected = (k * (once + twice * k)).sum((1, 2)) + (product * means).sum(1)
        variance = (k.square() * (squares + cubes * k)).sum((1, 2))
        variance = variance + (product * (both + (mixed * k).sum(1))).sum(1)
        yield log_mass, expected, variance


def _unit_joint(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    """Return mean [B, 2Z] and covariance [B, 2Z, 2Z] of (z_x, z_y) scaled to ``E A = E B = 1``."""
    xx, yy, xy = pairs.dense()
    mean = torch.cat([pairs.x, pairs.y], 1).double()
    joint = torch.cat([torch.cat([xx, xy], 2), torch.cat([xy.mT, yy], 2)], 1).double()
    second = mean.square() + joint.diagonal(dim1=1, dim2=2)
    scale = second.unflatten(1, (2, -1)).sum(2).rsqrt().repeat_interleave(pairs.x.shape[1], 1)
    return mean * scale, joint * scale[:, :, None] * scale[:, None, :]


def _dense(angle: float, mean: Tensor, joint: Tensor) -> Iterator[Tilted]:
    """Yield the tilted moments for every t, from any covariances.

    In the eigenbasis of ``D^1/2 Sigma D^1/2``, [2Z, 2Z], ``e^(-t Q)`` acts on each coordinate.
    """
    size = mean.shape[1] // 2
    root = mean.new_tensor([(1 + angle) / 2, (1 - angle) / 2]).sqrt().repeat_interleave(size)
    eigenvalues, basis = torch.linalg.eigh(joint * root[:, None] * root)
    eigenvalues = eigenvalues.clamp_min(0)
    center = (basis.mT @ (mean * root)[:, :, None])[:, :, 0]
    left, right = basis[:, :size], basis[:, size:]
    form = left.mT @ right / (2 * root[0] * root[-1])  # N = z' F z after scaling by D^1/2
    form = torch.eye(2 * size).to(form) - (form + form.mT)  # Q = z' z there
    for t, _ in half_line():
        shrink = 1 / (1 + 2 * t * eigenvalues)
        m, s = center * shrink, eigenvalues * shrink
        log_mass = shrink.log().sum(1) / 2 - t * (center * m).sum(1)
        # E z'Fz = m'Fm + tr(F S),  Var z'Fz = 2 tr(F S F S) + 4 m'F S F m
        image = (form @ m[:, :, None])[:, :, 0]
        expected = (m * image).sum(1) + (form.diagonal(dim1=1, dim2=2) * s).sum(1)
        noise = 2 * (form.square() * s[:, :, None] * s[:, None, :]).sum((1, 2))
        yield log_mass, expected, noise + 4 * (image.square() * s).sum(1)
