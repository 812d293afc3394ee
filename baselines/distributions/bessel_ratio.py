"""``I_(v+1)(k) / I_v(k)``, its derivative and log of I_v, for every order v >= 0 and k >= 0.

Debye's expansion, uniform in k, holds at a high order m (DLMF 10.41.3):

    log I_m(k) = h + m log(k / (m + h)) - log(2 pi h) / 2 + sum_j q^j E_j(t)
    h = sqrt(m^2 + k^2)     q = 1/h     t = m^2 / h^2

Its terms are ``D_j(p) / m^j`` with ``p = m/h``; ``D_j`` has powers p^j, p^(j+2), ..., p^(3j) only,
so ``D_j(p) / m^j = q^j E_j(p^2)``, which stays finite at m = 0 and at k = 0. The coefficients of
E_j are exact fractions. From m the ratios r_v = I_(v+1)/I_v come down by

    r_(v-1) = k / (2 v + k r_v)                                          (DLMF 10.29.1)
    r'_(v-1) = (2 v - k^2 r'_v) / (2 v + k r_v)^2                        its derivative

both contractions without cancellation. With ``s = r / k`` nothing is singular at k = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Polynomial = list[Fraction]  # coefficients of p^0, p^1, ... or of t^0, t^1, ...


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def _next(u: Polynomial) -> Polynomial:
    """Return ``p^2 (1 - p^2) u_j' / 2 + int_0^p (1 - 5 s^2) u_j(s) ds / 8`` (DLMF 10.41.9)."""
    out = [Fraction(0)] * (len(u) + 3)
    for i, x in enumerate(u):
        out[i + 1] += x * i / 2 + x / (8 * (i + 1))
        out[i + 3] -= x * i / 2 + 5 * x / (8 * (i + 3))
    return out


def _logarithm(u: list[Polynomial]) -> list[Polynomial]:
    """Return series D of log(1 + sum u_j x^j): ``n D_n = n u_n - sum_(0<m<n) m D_m u_(n-m)``."""
    log: list[Polynomial] = [[Fraction(0)]]
    for n in range(1, len(u)):
        term = [n * x for x in u[n]]
        for m in range(1, n):
            for i, x in enumerate(_product(log[m], u[n - m])):
                term[i] -= m * x
        log.append([x / n for x in term])
    return log


@cache
def debye_coefficients(terms: int) -> tuple[tuple[Fraction, ...], ...]:
    """Return E_1, ..., E_terms as coefficients of t^0, t^1, ...

    Examples
    --------
    >>> [str(x) for x in debye_coefficients(1)[0]]  # u_1(p) = (3 p - 5 p^3) / 24
    ['1/8', '-5/24']
    """
    u: list[Polynomial] = [[Fraction(1)]]
    for _ in range(terms):
        u.append(_next(u[-1]))
    log = _logarithm(u)
    return tuple(tuple(log[j][j : 3 * j + 1 : 2]) for j in range(1, terms + 1))


LOWEST_ORDER, TERMS = 24.0, 9  # error below 1e-14 from this order on

Table = tuple[tuple[float, ...], ...]


class DebyeTables(NamedTuple):
    """Polynomials in t: of log I, of ``-s`` and of ``-r'``."""

    log: Table
    ratio: Table
    slope: Table


@cache
def _tables() -> DebyeTables:
    """E_j; ``G_j = j E_j + 2 t E_j'``; ``H_j = G_j - (1 - t) ((j + 2) G_j + 2 t G_j')``.

    By ``dq/dk = -k q^3`` and ``dt/dk = -2 k q^2 t``:
    ``d/dk q^j E_j = -k q^(j+2) G_j`` and ``d/dk (k q^(j+2) G_j) = q^(j+2) H_j``.
    """
    rows = debye_coefficients(TERMS)
    g = [[(j + 2 * i) * x for i, x in enumerate(row)] for j, row in enumerate(rows, 1)]
    h, zero = [], Fraction(0)
    for j, row in enumerate(g, 1):
        inner = [(j + 2 + 2 * i) * x for i, x in enumerate(row)]
        shifted = zip([*row, zero], [*inner, zero], [zero, *inner], strict=True)
        h.append([a - b + c for a, b, c in shifted])
    return DebyeTables(*(tuple(tuple(map(float, row)) for row in x) for x in (rows, g, h)))


def _horner(coefficients: Sequence[float], t: Tensor) -> Tensor:
    value = torch.full_like(t, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * t + c
    return value


def _series(table: Table, q: Tensor, t: Tensor) -> Tensor:
    """Return ``sum_j q^j P_j(t)``."""
    value = torch.zeros_like(t)
    for row in reversed(table):
        value = (value + _horner(row, t)) * q
    return value


def _high_order(v: float) -> float:
    """Return ``v + n >= LOWEST_ORDER`` with the smallest integer n >= 0."""
    return v + max(0, math.ceil(LOWEST_ORDER - v))


def _orders_down(m: float, v: float) -> list[float]:
    """Return m, m - 1, ..., v + 1."""
    return [m - i for i in range(round(m - v))]


def _ratio_over_k(m: float, h: Tensor) -> Tensor:
    """Return ``s = r_m / k = 1/(h + m) - q^2/2 - sum_j q^(j+2) G_j(t)``."""
    q = 1 / h
    return 1 / (h + m) - q.square() * (0.5 + _series(_tables().ratio, q, (m * q).square()))


def bessel_ratio(k: Float[Tensor, "*B"], v: float) -> Float[Tensor, "*B"]:
    """Return ``I_(v+1)(k) / I_v(k)`` for float64 k.

    Examples
    --------
    >>> k = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> bessel_ratio(k, 0.5)  # coth(k) - 1/k
    tensor([0.0000, 0.3130], dtype=torch.float64)
    """
    m = _high_order(v)
    ratio = k * _ratio_over_k(m, torch.hypot(k, torch.full_like(k, m)))
    for order in _orders_down(m, v):
        ratio = k / (2 * order + k * ratio)
    return ratio


def bessel_ratio_over_k(square: Float[Tensor, "*B"], v: float) -> Float[Tensor, "*B"]:
    """Compute ``s = I_(v+1)(k) / (k I_v(k))`` of ``k^2``, a smooth function of it, also at 0.

    Examples
    --------
    >>> bessel_ratio_over_k(torch.zeros(1, dtype=torch.float64), 0.5)  # 1/D at k = 0, D = 3
    tensor([0.3333], dtype=torch.float64)
    """
    m = _high_order(v)
    s = _ratio_over_k(m, (square + m * m).sqrt())
    for order in _orders_down(m, v):
        s = 1 / (2 * order + square * s)
    return s


def bessel_ratio_slope(k: Float[Tensor, "*B"], v: float) -> Float[Tensor, "*B"]:
    """Return d/dk of ``bessel_ratio``; at the high order ``m q/(h + m) - q^2 (2 t - 1)/2 - ...``.

    Examples
    --------
    >>> bessel_ratio_slope(torch.zeros(1, dtype=torch.float64), 0.5)  # 1/D at k = 0, D = 3
    tensor([0.3333], dtype=torch.float64)
    """
    m = _high_order(v)
    h = (k.square() + m * m).sqrt()
    q = 1 / h
    t = (m * q).square()
    ratio = k * _ratio_over_k(m, h)
    slope = m * q / (h + m) - q.square() * (t - 0.5 + _series(_tables().slope, q, t))
    for order in _orders_down(m, v):
        below = 2 * order + k * ratio
        slope = (2 * order / below - k * (k * slope / below)) / below
        ratio = k / below
    return slope


def log_bessel_scaled(k: Float[Tensor, "*B"], v: float) -> Float[Tensor, "*B"]:
    """Return ``log(I_v(k) k^-v e^-k)`` for float64 k: finite at k = 0, no overflow at any k.

    Examples
    --------
    >>> log_bessel_scaled(torch.ones(1, dtype=torch.float64), 0.0)  # log(I_0(1) / e)
    tensor([-0.7641], dtype=torch.float64)
    """
    m = _high_order(v)
    h = (k.square() + m * m).sqrt()
    q = 1 / h
    value = m * m / (h + k) - m * (m + h).log() - (2 * math.pi * h).log() / 2  # h - k = m^2/(h+k)
    value = value + _series(_tables().log, q, (m * q).square())
    s = _ratio_over_k(m, h)
    for order in _orders_down(m, v):
        s = 1 / (2 * order + k * (k * s))
        value = value - s.log()
    return value
