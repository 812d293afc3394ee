"""How many more held-out queries would be enough to promise a precision.

A promise tests n held-out queries (``threshold_for``): of the n_s surest, a share s of all, k_s are
right, and the test passes if

    P(Bin(n_s, target) >= k_s) <= delta / J

for one of J = 10 shares. With m more queries, answered as these are, n'_s = ceil((n + m) s) are
accepted and k'_s of them are right. What is known of the share that is right, under Jeffreys'
prior, and of the new ones among them is

    theta_s          ~ Beta(k_s + 1/2, n_s - k_s + 1/2)
    k'_s - k_s | ... ~ BetaBinomial(n'_s - n_s, k_s + 1/2, n_s - k_s + 1/2)

and the chance that share s passes is P(k'_s >= c_s), with c_s the least number that does. The
promise has at least the largest of these chances: the predictive power of Spiegelhalter, Freedman &
Blackburn (1986, Controlled Clinical Trials 7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from laplace_metric._utils.validation import ArrayLike, check_share
from laplace_metric.search.match._sequences import STARTS, Tests, held_out_answers

CHANCE = 0.8
PRIOR = 0.5
"""Jeffreys', in successes and in failures."""
REACH = 20
"""How many times the queries that there are; beyond, the prior speaks and not they."""


@dataclass(frozen=True)
class Shortfall:
    """What a precision that cannot be promised lacks.

    Parameters
    ----------
    more : int or None
        Queries to add, with which it can likely be promised; 0 if it can be already. None if even
        20 times as many as there are would not likely do: the surest answers are wrong too often,
        or too few to tell.
    surest, right : int
        Accepted hits of the first test that comes nearest, and how many of them are right.
    flawless : int
        Accepted hits that would be enough, if all of them were right.
    ever : float
        Chance that any number of queries would be enough: ``max_s P(theta_s > target)``.
    """

    more: int | None
    surest: int
    right: int
    flawless: int
    ever: float


def shortfall(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    precision: float,
    confidence: float = 0.95,
    chance: float = CHANCE,
    abstained: ArrayLike | None = None,
    thresholds: ArrayLike | None = None,
) -> Shortfall:
    """How many more held-out queries ``threshold_for`` likely needs to promise a precision.

    Parameters
    ----------
    probability : [n]
        In [0, 1], of the nearest neighbour of each held-out query.
    correct : [n]
        Whether it is a match: booleans, or 0 and 1.
    precision, confidence : float in (0, 1)
        As for ``threshold_for``.
    chance : float in (0, 1)
        That the promise can be made then, if new queries are answered as these are.
    abstained : [n], optional
        Which held-out queries are not answered, whatever the threshold.
    thresholds : [m], optional
        As for ``threshold_for``.

    Raises
    ------
    InputError
        As ``threshold_for``.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 100)
    >>> missing = shortfall(p, p > 0.4, precision=0.95)
    >>> missing.more, missing.right, missing.surest, missing.flawless
    (202, 60, 60, 104)
    """
    from scipy.stats import beta

    target, delta = check_share("precision", precision), 1 - check_share("confidence", confidence)
    check_share("chance", chance)
    p, right = held_out_answers(probability, correct, abstained)
    level = delta / STARTS
    found = Tests.of(p, right, thresholds)
    starts = [int(start) for start in found.starts if found.accepted[start]]
    tests = tuple((int(found.accepted[start]), int(found.right[start])) for start in starts)
    flawless = math.ceil(math.log(level) / math.log(target)) + found.spent
    if not tests:  # nothing is answered
        return Shortfall(None, 0, 0, flawless, float(beta.sf(target, PRIOR, PRIOR)))
    at = max(starts, key=lambda start: found.bound(start, level))
    surest, good = int(found.accepted[at]), int(found.right[at])
    ever = max(float(beta.sf(target, k + PRIOR, n - k + PRIOR)) for n, k in tests)
    more = _more(tests, len(p), target, level, chance, found.spent)
    return Shortfall(more, surest, good, flawless, ever)


@lru_cache(64)  # a guarantee that cannot be given is asked for again and again
def _more(
    tests: tuple[tuple[int, int], ...],
    n: int,
    target: float,
    level: float,
    chance: float,
    spent: int,
) -> int | None:
    """Return the least number of further queries that is likely enough, of n and their tests."""

    def enough(more: int) -> bool:
        then = [-(-(n + more) * accepted // n) for accepted, _ in tests]
        pairs = zip(tests, then, strict=True)
        return any(chance_of_test(a, k, m, target, level, spent) >= chance for (a, k), m in pairs)

    return _smallest(enough, REACH * n)


def chance_of_test(
    accepted: int, right: int, then: int, target: float, level: float, spent: int = 0
) -> float:
    """That ``then`` accepted hits pass the test, of which ``accepted`` are known by now.

    Parameters
    ----------
    spent : int
        Right hits that the test leaves out.

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
    """The least number that is enough where one fewer is not, by doubling and halving."""
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
