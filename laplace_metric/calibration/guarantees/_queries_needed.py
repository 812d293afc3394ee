"""How many more held-out queries would be enough to guarantee a precision.

A guarantee tests n held-out queries (``_precision``): of the n_s surest, a share s of all, k_s are
right, and the test passes if

    P(Bin(n_s, target) >= k_s) <= its level

for one of J = 10 shares, whose levels sum to delta (``_test_sequences``). With m more queries,
answered as these are, n'_s = ceil((n + m) s) are accepted and k'_s of them are right. What is known
of the share that is right, under Jeffreys' prior, and of the new ones among them is

    theta_s          ~ Beta(k_s + 1/2, n_s - k_s + 1/2)
    k'_s - k_s | ... ~ BetaBinomial(n'_s - n_s, k_s + 1/2, n_s - k_s + 1/2)

and the chance that share s passes is P(k'_s >= c_s), with c_s the least number that does. The
guarantee has at least the largest of these chances: the predictive power of Spiegelhalter,
Freedman & Blackburn (1986, Controlled Clinical Trials 7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from laplace_metric.calibration._arrays import Array, Flags
from laplace_metric.calibration.guarantees._test_sequences import STARTS, Tests, levels

CHANCE = 0.8
"""Chance that the guarantee can be made with the queries that are asked for."""
PRIOR = 0.5
"""Jeffreys', in successes and in failures."""
REACH = 20
"""How many times the queries that there are; beyond, the prior speaks and not they."""


@dataclass(frozen=True)
class QueriesNeeded:
    """Queries that are missing to guarantee a precision.

    Parameters
    ----------
    more : int or None
        Number of queries to add, with which it can probably be guaranteed; 0 if it can be already.
        None if even 20 times as many as there are would probably not be enough: the most certain
        answers are wrong too often, or are too few for an estimate. None also for groups, for which
        it is not estimated: ``surest`` and ``right`` are 0, ``flawless`` counts groups, and
        ``ever`` is NaN.
    surest, right : int
        Number of accepted hits of the first test that comes nearest, and of right ones among them.
    flawless : int
        Number of accepted hits that would be enough, if all of them were right.
    ever : float
        Probability that any number of queries would be enough: ``max_s P(theta_s > target)``.
    """

    more: int | None
    surest: int
    right: int
    flawless: int
    ever: float


def about(n: int) -> str:
    """Return an estimated number of queries with the two digits that it deserves, rounded up.

    Examples
    --------
    >>> about(1_264), about(103), about(28), about(3)
    ('1,300', '110', '28', '3')
    """
    unit = 10 ** max(0, len(str(n)) - 2)
    return f"{-(-n // unit) * unit:,}"


def queries_needed(
    p: Array,
    right: Flags,
    target: float,
    delta: float,
    *,
    chance: float = CHANCE,
    thresholds: Array | None = None,
) -> QueriesNeeded:
    """Estimate how many more tested queries it takes to guarantee a precision.

    Parameters
    ----------
    p : [n]
        Probability of each answer, in [0, 1]; ``NEVER`` for queries that are not answered.
    right : [n]
        True for each answer that is right.
    target, delta : float in (0, 1)
        Precision, and probability that the guarantee does not hold.
    chance : float in (0, 1)
        Probability that it can be guaranteed then, if new queries are answered as these are.
        Default: ``CHANCE``.
    thresholds : [m] or None
        Probabilities of other queries, among which thresholds are chosen. None, the default: p.

    Examples
    --------
    >>> p = np.linspace(0, 1, 100)
    >>> missing = queries_needed(p, p > 0.4, 0.95, 0.05)
    >>> missing.more, missing.right, missing.surest, missing.flawless
    (27, 50, 50, 60)
    """
    from scipy.stats import beta

    found = Tests.of(p, right, thresholds)
    of = zip(found.starts.tolist(), found.expected.tolist(), strict=True)
    tests = tuple((int(found.accepted[at]), int(found.right[at]), n) for at, n in of)
    flawless = math.ceil(math.log(delta) / math.log(target)) + found.spent
    if not any(accepted for accepted, _, _ in tests):  # nothing is answered
        return QueriesNeeded(None, 0, 0, flawless, float(beta.sf(target, PRIOR, PRIOR)))
    at = max(found.starts, key=lambda start: found.bound(start, delta / STARTS))
    surest, good = int(found.accepted[at]), int(found.right[at])
    ever = max(float(beta.sf(target, k + PRIOR, n - k + PRIOR)) for n, k, _ in tests if n)
    more = _more(tests, len(p), target, delta, chance, found.spent)
    return QueriesNeeded(more, surest, good, flawless, ever)


@lru_cache(64)  # a guarantee that cannot be given is asked for again and again
def _more(
    tests: tuple[tuple[int, int, int], ...],
    n: int,
    target: float,
    delta: float,
    chance: float,
    spent: int,
) -> int | None:
    """Return the least number of further queries that is likely enough, of n and their tests.

    ``tests`` are the hits that each start accepts, the right ones, and how many it was to accept.
    """

    def grown(count: int, more: int) -> int:
        return -(-(n + more) * count // n)

    def enough(more: int) -> bool:
        own = levels(np.array([grown(e, more) for *_, e in tests]), spent, target, delta)
        return any(
            chance_of_test(a, k, grown(a, more), target, level, spent) >= chance
            for (a, k, _), level in zip(tests, own.tolist(), strict=True)
            if a and level
        )

    return _smallest(enough, REACH * n)


def chance_of_test(
    accepted: int, right: int, then: int, target: float, level: float, spent: int = 0
) -> float:
    """Return the chance that ``then`` hits pass the test, of which ``accepted`` are known by now.

    Parameters
    ----------
    accepted, right : int
        Number of accepted hits by now, and of right ones among them.
    then : int
        Number of accepted hits at the test.
    target : float in (0, 1)
        Precision that is tested.
    level : float in (0, 1)
        Level of the test.
    spent : int
        Number of right hits that the test leaves out. Default: 0.

    Examples
    --------
    >>> chance_of_test(100, 100, 100, 0.9, 0.005), chance_of_test(100, 80, 100, 0.9, 0.005)
    (1.0, 0.0)
    """
    from scipy.special import betaln, gammaln
    from scipy.stats import binom

    needed = int(binom.isf(level, then - spent, target)) + 1 + spent
    m, missing = then - accepted, max(0, needed - right)
    if missing > m:
        return 0.0
    a, b, new = right + PRIOR, accepted - right + PRIOR, np.arange(missing, m + 1)
    choices = gammaln(m + 1) - gammaln(new + 1) - gammaln(m - new + 1)
    return min(1.0, float(np.exp(choices + betaln(new + a, m - new + b) - betaln(a, b)).sum()))


def _smallest(enough: Callable[[int], bool], most: int) -> int | None:
    """Return the least number that is enough if one fewer is not, by doubling and halving."""
    if enough(0):
        return 0
    low, high = 0, 1
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
