"""Pairs of uncertain embeddings, and the moments of their squared distance.

Any covariances, [Z, Z] of each pair written out.

Moments of the squared chord of two jointly Gaussian embeddings, by two small quadratures.

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

The integral over t is the trapezoidal rule in s after ``t = exp(s - e^(-s) + e^(s - 9))`` (double
exponential; Takahasi and Mori 1974). Where a length can vanish, the integrand has an algebraic
tail. As ``|M| <= r Q`` with ``r = 1 + (1 - w^2)^-1/2`` and ``(1 + x) e^(-x) <= 1.22 e^(-x / 2)``,
what is left out beyond T is at most

    1.22 max(r, r^2) E[e^(-T Q / 2)] <= 1.22 max(r, r^2) prod_j (1 + T l_j)^-1/2

with l_j the eigenvalues of the covariance of ``D^1/2 (z_x, z_y)``, ``Q = |D^1/2 (z_x, z_y)|^2``.
The slowest tail is that of a near pair in two dimensions, whose covariance has two eigenvalues of
about 1/2: 1 / T. The term ``e^(s - 9)`` takes T to 3e11 at no more points; a rule that ends at
T = e^9 leaves 1e-4, more than the squared distance of inputs 1 % apart.

The error that remains is that of the six points in w: ``benchmarks.costs.chords`` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric.distributions import Covariance


@dataclass(frozen=True, repr=False)
class Distance(Shown):
    """Mean and variance of the squared Euclidean distance of B pairs.

    Parameters
    ----------
    mean, variance : Tensor [B]
        On the sphere the squared distance is ``2 - 2 cos``: its mean is kept in [0, 4], its
        variance below ``mean (4 - mean)``, the most that a variable in [0, 4] can have.
        ``LaplaceEmbedder.distance`` gives them by quadrature, ``Index.search`` to second order.
    """

    mean: Tensor
    variance: Tensor

    @property
    def standard_deviation(self) -> Tensor:
        """[B]."""
        return self.variance.sqrt()


@dataclass(frozen=True)
class EmbeddingPairs:
    """B pairs of Gaussian raw embeddings.

    Parameters
    ----------
    x, y : Tensor [B, Z]
    xx, yy : Covariance
    xy : Covariance or None
        ``Cov[z_x, z_y]``; None for independent ones.
    """

    x: Tensor
    y: Tensor
    xx: Covariance
    yy: Covariance
    xy: Covariance | None

    def __getitem__(self, part: slice | Tensor) -> EmbeddingPairs:
        xx, yy = self.xx.select(part), self.yy.select(part)
        xy = None if self.xy is None else self.xy.select(part)
        return EmbeddingPairs(self.x[part], self.y[part], xx, yy, xy)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """C_xx, C_yy, C_xy [B, Z, Z]."""
        xx, yy = self.xx.dense(), self.yy.dense()
        return xx, yy, torch.zeros_like(xx) if self.xy is None else self.xy.dense()


@dataclass(frozen=True)
class SpectralPairs:
    """B pairs seen in the basis of their covariances: x, y and a, b, w [B, Z]."""

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    w: Tensor

    def __getitem__(self, part: slice | Tensor) -> SpectralPairs:
        return SpectralPairs(*(t[part] for t in (self.x, self.y, self.a, self.b, self.w)))


def dense_moments(pairs: EmbeddingPairs, *, spherical: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance [B]."""
    return _on_the_sphere(pairs) if spherical else _raw(pairs)


def _raw(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    m, c = pairs.x - pairs.y, xx + yy - xy - xy.mT
    return m.square().sum(1) + _trace(c), _quadratic_variance(m, c)


def _on_the_sphere(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    xx, yy, xy = pairs.dense()
    (u, r), (v, q) = _direction(pairs.x), _direction(pairs.y)
    p, s = _tangent(u, r), _tangent(v, q)
    t_x, t_y, cross = p @ xx @ p, s @ yy @ s, p @ xy @ s
    c = (u * v).sum(1)
    k = _trace(cross) - _coupling(xx, u, v, r, c) - _coupling(yy, v, u, q, c)
    shrink = (1 + _trace(t_x)) * (1 + _trace(t_y))
    mean = 2 - 2 * ((c + k) * shrink.rsqrt()).clamp(-1, 1)
    variance = _quadratic_variance(u - v, t_x + t_y - cross - cross.mT) / shrink
    return mean, variance.minimum(mean * (4 - mean))  # no variable in [0, 4] has more


def _coupling(cov: Tensor, u: Tensor, v: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """``(v - c u)^T C u / r^2`` [B]: how a longer z turns towards or away from v."""
    return _form(v - c[:, None] * u, cov, u) / r.square()


def _quadratic_variance(m: Tensor, c: Tensor) -> Tensor:
    """Var |d|^2 for ``d ~ N(m, C)``: ``4 m^T C m + 2 tr C^2`` [B]."""
    return (4 * _form(m, c, m) + 2 * c.square().sum((1, 2))).clamp_min(0)


def _direction(z: Tensor) -> tuple[Tensor, Tensor]:
    """u [B, Z] and r [B]."""
    r = z.norm(dim=1)
    return z / r[:, None], r


def _tangent(u: Tensor, r: Tensor) -> Tensor:
    """``(I - u u^T) / r`` [B, Z, Z]."""
    identity = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
    return (identity - u[:, :, None] * u[:, None, :]) / r[:, None, None]


def _form(left: Tensor, cov: Tensor, right: Tensor) -> Tensor:
    """``l^T C r`` [B]."""
    return torch.einsum("bk,bkl,bl->b", left, cov, right)


def _trace(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=1, dim2=2).sum(1)


N_ANGLES = 6
STEP, FIRST, LAST = 0.3, -3.0, 11.7
"""Of s: a length that does not vary is integrated to 2e-12."""
STRETCHED_FROM = 9.0
"""The s from which t grows double exponentially, for algebraic tails."""


@cache
def _angles() -> list[tuple[float, float, float]]:
    """(w, weight under ``(1 - w^2)^-1/2 / pi``, weight under 1/2) of each point."""
    points, uniform = np.polynomial.legendre.leggauss(N_ANGLES)
    basis = np.polynomial.legendre.legvander
    chebyshev = np.cos((np.arange(4 * N_ANGLES) + 0.5) * math.pi / (4 * N_ANGLES))
    means = basis(chebyshev, N_ANGLES - 1).mean(0)
    arcsine = np.linalg.solve(basis(points, N_ANGLES - 1).T, means)
    return list(zip(points.tolist(), arcsine.tolist(), (uniform / 2).tolist(), strict=True))


@cache
def _times() -> list[tuple[float, float]]:
    """(t, weight) of the double exponential rule on (0, inf)."""
    s = np.arange(FIRST, LAST + STEP / 2, STEP)
    shrink, stretch = np.exp(-s), np.exp(s - STRETCHED_FROM)
    t = np.exp(s - shrink + stretch)
    return list(zip(t.tolist(), (STEP * t * (1 + shrink + stretch)).tolist(), strict=True))


Tilted = tuple[Tensor, Tensor, Tensor]
"""log L, and mean and variance of M under the tilted Gaussian [B]."""


def exact_chord(pairs: EmbeddingPairs | SpectralPairs) -> tuple[Tensor, Tensor]:
    """Mean and variance [B] of ``2 - 2 c``; computed in float64."""
    tilted: Callable[..., Iterator[Tilted]]
    if isinstance(pairs, SpectralPairs):
        tilted, parts = _spectral, _unit_length(*(v.double() for v in vars(pairs).values()))
    else:
        tilted, parts = _dense, _unit_joint(pairs)
    first = second = parts[0].new_zeros(len(parts[0]))
    for w, arcsine, uniform in _angles():
        for (t, weight), (log_mass, mean, variance) in zip(
            _times(), tilted(w, *parts), strict=True
        ):
            mass = weight * log_mass.exp()
            once, twice = mass * mean, t * mass * (mean.square() + variance)
            first = first + arcsine * once
            second = second + uniform * twice + 2 * (arcsine - uniform) * once
    mean = (2 * first).clamp(0, 4)
    return mean.to(pairs.x), (4 * second - mean.square()).clamp_min(0).to(pairs.x)


def _unit_length(x: Tensor, y: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """x, y, a, b, w [B, Z] with ``E A = E B = 1``, and ``a b - w^2``."""
    p = (x.square() + a).sum(1, keepdim=True).rsqrt()
    q = (y.square() + b).sum(1, keepdim=True).rsqrt()
    x, y, a, b, w = x * p, y * q, a * p.square(), b * q.square(), w * p * q
    return x, y, a, b, w, (a * b - w.square()).clamp_min(0)


def _spectral(
    angle: float, x: Tensor, y: Tensor, a: Tensor, b: Tensor, w: Tensor, determinant: Tensor
) -> Iterator[Tilted]:
    """In the eigenbasis of each coordinate's [2, 2] ``D^1/2 Sigma D^1/2``: polynomials in its k."""
    left, right = (1 + angle) / 2, (1 - angle) / 2
    x, y, cross = math.sqrt(left) * x, math.sqrt(right) * y, math.sqrt(left * right) * w
    half_gap = (left * a - right * b) / 2
    largest = (left * a + right * b) / 2 + half_gap.hypot(cross)
    smallest = left * right * determinant / largest.where(largest > 0, 1.0)
    turn = torch.atan2(cross, half_gap) / 2
    cos, sin = turn.cos(), turn.sin()
    eigenvalues = torch.stack([largest, smallest], 1)
    center = torch.stack([cos * x + sin * y, cos * y - sin * x], 1)
    # M = z' F z with F = [[f_1, off], [off, f_2]]; N has 1 / (2 sqrt(left right)) off the diagonal
    longer = (2 * turn).sin() / (2 * math.sqrt(left * right))
    off = -(2 * turn).cos() / (2 * math.sqrt(left * right))
    f = torch.stack([1 - longer, 1 + longer], 1)
    c_c, l_l = center.prod(1), eigenvalues.prod(1)
    lengths = center.square()
    once, twice = f * eigenvalues, f * lengths
    squares, cubes = 2 * once.square(), 4 * once * twice
    mixed = (
        8 * once * (off * c_c)[:, None] + 4 * eigenvalues.flip(1) * lengths * off.square()[:, None]
    )
    both, means = 4 * off.square() * l_l, 2 * off * c_c
    for t, _ in _times():
        k = 1 / (1 + 2 * t * eigenvalues)
        product = k[:, 0] * k[:, 1]
        log_mass = product.log().sum(1) / 2 - t * (lengths * k).sum((1, 2))
        expected = (k * (once + twice * k)).sum((1, 2)) + (product * means).sum(1)
        variance = (k.square() * (squares + cubes * k)).sum((1, 2))
        variance = variance + (product * (both + (mixed * k).sum(1))).sum(1)
        yield log_mass, expected, variance


def _unit_joint(pairs: EmbeddingPairs) -> tuple[Tensor, Tensor]:
    """Mean [B, 2Z] and covariance [B, 2Z, 2Z] of (z_x, z_y) with ``E A = E B = 1``."""
    xx, yy, xy = pairs.dense()
    mean = torch.cat([pairs.x, pairs.y], 1).double()
    joint = torch.cat([torch.cat([xx, xy], 2), torch.cat([xy.mT, yy], 2)], 1).double()
    second = mean.square() + joint.diagonal(dim1=1, dim2=2)
    scale = second.unflatten(1, (2, -1)).sum(2).rsqrt().repeat_interleave(pairs.x.shape[1], 1)
    return mean * scale, joint * scale[:, :, None] * scale[:, None, :]


def _dense(angle: float, mean: Tensor, joint: Tensor) -> Iterator[Tilted]:
    """In the eigenbasis of ``D^1/2 Sigma D^1/2``, where ``e^(-t Q)`` acts on each coordinate."""
    size = mean.shape[1] // 2
    root = mean.new_tensor([(1 + angle) / 2, (1 - angle) / 2]).sqrt().repeat_interleave(size)
    eigenvalues, basis = torch.linalg.eigh(joint * root[:, None] * root)
    eigenvalues = eigenvalues.clamp_min(0)
    center = (basis.mT @ (mean * root)[:, :, None])[:, :, 0]
    left, right = basis[:, :size], basis[:, size:]
    form = left.mT @ right / (2 * root[0] * root[-1])  # N = z' F z after scaling by D^1/2
    form = torch.eye(2 * size).to(form) - (form + form.mT)  # Q = z' z there
    for t, _ in _times():
        shrink = 1 / (1 + 2 * t * eigenvalues)
        m, s = center * shrink, eigenvalues * shrink
        log_mass = shrink.log().sum(1) / 2 - t * (center * m).sum(1)
        image = (form @ m[:, :, None])[:, :, 0]
        expected = (m * image).sum(1) + (form.diagonal(dim1=1, dim2=2) * s).sum(1)
        noise = 2 * (form.square() * s[:, :, None] * s[:, None, :]).sum((1, 2))
        yield log_mass, expected, noise + 4 * (image.square() * s).sum(1)
