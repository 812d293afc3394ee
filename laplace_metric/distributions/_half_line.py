"""Double exponential rule on (0, inf), for integrals with an exponential or an algebraic tail.

The trapezoidal rule in s after ``t = exp(s - e^(-s) + e^(s - 9))`` (Takahasi and Mori 1974). The
term ``e^(s - 9)`` takes t to 3e11 at no more points: a rule that ends at e^9 leaves 1e-4 of an
integral whose tail falls as 1 / t^2.
"""

from __future__ import annotations

from functools import cache

import numpy as np

STEP, FIRST, LAST = 0.3, -3.0, 11.7
"""Grid of s: without an algebraic tail, the error of an integral over t is 2e-12."""
STRETCHED_FROM = 9.0
"""Value of s from which t grows double exponentially, for algebraic tails."""


@cache
def half_line() -> list[tuple[float, float]]:
    """Return (t, weight) of each point of the rule.

    Examples
    --------
    >>> import math
    >>> round(sum(weight * math.exp(-t) for t, weight in half_line()), 9)
    1.0
    """
    s = np.arange(FIRST, LAST + STEP / 2, STEP)
    shrink, stretch = np.exp(-s), np.exp(s - STRETCHED_FROM)
    t = np.exp(s - shrink + stretch)
    return list(zip(t.tolist(), (STEP * t * (1 + shrink + stretch)).tolist(), strict=True))
