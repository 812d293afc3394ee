"""Coefficients of Debye's expansion of log I_m(k), uniform in k (exact rational arithmetic).

    log I_m(k) = h + m log(k / (m + h)) - log(2 pi h) / 2 + sum_j q^j E_j(t)
    h = sqrt(m^2 + k^2)     q = 1/h     t = m^2 / h^2                      (DLMF 10.41.3)

Its terms are ``D_j(p) / m^j`` with ``p = m/h``; ``D_j`` has powers p^j, p^(j+2), ..., p^(3j) only,
so ``D_j(p) / m^j = q^j E_j(p^2)``, which stays finite at m = 0 and at k = 0.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

Polynomial = list[Fraction]  # coefficients of p^0, p^1, ... or of t^0, t^1, ...


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def _next(u: Polynomial) -> Polynomial:
    """``u_(j+1) = p^2 (1 - p^2) u_j' / 2 + int_0^p (1 - 5 s^2) u_j(s) ds / 8`` (DLMF 10.41.9)."""
    out = [Fraction(0)] * (len(u) + 3)
    for i, x in enumerate(u):
        out[i + 1] += x * i / 2 + x / (8 * (i + 1))
        out[i + 3] -= x * i / 2 + 5 * x / (8 * (i + 3))
    return out


def _logarithm(u: list[Polynomial]) -> list[Polynomial]:
    """Series D of log(1 + sum u_j x^j): ``n D_n = n u_n - sum_(0<m<n) m D_m u_(n-m)``."""
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
    """E_1, ..., E_terms as coefficients of t^0, t^1, ...

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
