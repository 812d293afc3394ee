"""How many more held-out queries would be enough to guarantee a precision.

A guarantee tests n held-out queries (``_precision``): of the n_s surest, a share s of all, k_s are
right, and the test passes if

    P(Bin(n_s, target) >= k_s) <= its level

for one of J = 10 shares, whose levels sum to delta (``_test_sequences``). The share that is right,
theta_s, is at least its lower bound b_s of 90 % confidence (Clopper & Pearson 1934),

    P(Bin(n_s, b_s) >= k_s) = 1/10

With m more queries n'_s = ceil((n + m) s) are accepted, and c_s right ones are the least that pass.
m is the least number with which, for one of the shares,

    P(Bin(n'_s, b_s) >= c_s) >= chance

The known queries count as new ones: that they were right so often may be luck, of which the share
that looks best has most. (Where a precision is near the target, the largest chance by estimates of
theta_s, said to be 80 %, was kept in a tenth to half of the cases.) Where no m up to 20 n is
enough, no number is named.

m is careful: usually a fraction of it does. What does with an even chance, if later queries are
right as often as these, is named next to it, as the lower end of a range. The known queries count
as they are, k_s right ones, and the new ones are right by the median t_s of theta_s, P(Bin(n_s,
t_s) >= k_s) = 1/2:

    P(k_s + Bin(n'_s - n_s, t_s) >= c_s) >= 1/2

Where a precision is above the target it is near to what does, and where it only equals the target
it is named for luck alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from laplace_metric.calibration._array_namespace import Array, Counts, Flags
from laplace_metric.calibration.guarantees._test_sequences import STARTS, Tests, levels

CHANCE = 0.8
"""Chance that the guarantee can be made with the queries that are asked for."""
MISSED = 0.1
"""Probability that the lower bound of a share is too high."""
EVEN = 0.5
"""Chance, and probability that a share is lower, of the number that does as often as not."""
LEAST_TOLD = 10
"""Least number that is named in words: fewer are not told apart by so few queries."""
REACH = 20
"""How many times the queries that there are; beyond, a small error of the bound decides."""


@dataclass(frozen=True)
class QueriesNeeded:
    """Queries that are missing to guarantee a precision.

    Parameters
    ----------
    more_queries : int or None
        Number of queries to add, with which it can probably be guaranteed; 0 if it can be already.
        None where these queries do not show that 20 times as many would be enough, and for groups,
        for which it is not estimated: ``surest`` and ``right`` are 0 then, and ``flawless`` counts
        groups.
    surest, right : int
        Number of accepted hits of the first test that comes nearest, and of right ones among them.
    flawless : int
        Number of accepted hits that would be enough, if all of them were right.
    reason : str
        Reason why ``more_queries`` is None. Default: empty, it is a number.
    even_chance : int or None
        Number of queries to add, with which it can be guaranteed as often as not, if later queries
        are right as often as these; the least of what may be enough, as ``more_queries`` is what
        most probably is. 0 if it can be already. None, the default: for no number that is in reach.

    Examples
    --------
    >>> QueriesNeeded(5_400, 97, 100, 30, even_chance=960).told("queries")
    'about 960 to 5,400 more queries'
    >>> QueriesNeeded(None, 97, 100, 30, "it cannot be told", even_chance=960).told("queries")
    'about 960 more queries, or many more'
    """

    more_queries: int | None
    surest: int
    right: int
    flawless: int
    reason: str = ""
    even_chance: int | None = None

    def told(self, kind: str) -> str:
        """Return the range of what may be enough, of such things; empty if no number is known."""
        if self.even_chance is None:
            return ""
        low = about(max(self.even_chance, LEAST_TOLD))
        if self.more_queries is None:
            return f"about {low} more {kind}, or many more"
        high = about(max(self.more_queries, LEAST_TOLD))
        return f"about {low} more {kind}" if low == high else f"about {low} to {high} more {kind}"

    def times(self, n: int) -> QueriesNeeded:
        """Return the same with n times the queries, where one of n tests."""
        more, even = (None if m is None else n * m for m in (self.more_queries, self.even_chance))
        return replace(self, more_queries=more, even_chance=even)


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
    >>> missing = queries_needed(p, np.arange(100) % 33 != 1, 0.9, 0.05)
    >>> missing.more_queries, missing.right, missing.surest, missing.flawless
    (708, 97, 100, 30)
    >>> missing.even_chance
    7
    >>> queries_needed(p[:9], p[:9] > 1, 0.9, 0.05).reason
    'of more queries like these, not enough would be right'
    """
    from scipy.special import bdtr

    found = Tests.of(p, right, thresholds)
    flawless = math.ceil(math.log(delta) / math.log(target)) + found.spent
    accepted, good = found.accepted[found.starts], found.right[found.starts]
    if not accepted.any():  # nothing is answered
        return QueriesNeeded(None, 0, 0, flawless, _untold(flawless))
    at = max(found.starts, key=lambda start: found.bound(start, delta / STARTS))
    surest, best = int(found.accepted[at]), int(found.right[at])
    if found.lowest(target, delta) is not None:
        return QueriesNeeded(0, surest, best, flawless, even_chance=0)
    of = tuple(zip(accepted.tolist(), good.tolist(), found.expected.tolist(), strict=True))
    more = _more(of, len(p), target, delta, chance, found.spent, MISSED)
    if more is None and bdtr(best, surest, target) <= MISSED:
        hopeless = "of more queries like these, not enough would be right"
        return QueriesNeeded(None, surest, best, flawless, hopeless)
    even = _more(of, len(p), target, delta, min(chance, EVEN), found.spent, EVEN)
    reason = _untold(flawless) if more is None else ""
    return QueriesNeeded(more, surest, best, flawless, reason, even)


def _untold(flawless: int) -> str:
    return (
        "how many more it takes cannot be told from these queries (the least are "
        f"{flawless:,} accepted ones that are all right)"
    )


@lru_cache(64)  # a guarantee that cannot be given is asked for again and again
def _more(
    tests: tuple[tuple[int, int, int], ...],
    n: int,
    target: float,
    delta: float,
    chance: float,
    spent: int,
    missed: float,
) -> int | None:
    """Return the least number of further queries that is likely enough, of n and their tests.

    ``missed`` is the probability that the bound of a share is too high. With ``EVEN`` of it, the
    known queries count as they are.

    ``tests`` are the hits that each start accepts, the right ones, and how many it was to accept.
    """
    accepted, right, expected = np.array(tests).T
    bound, as_they_are = least_shares(accepted, right, missed), int(missed == EVEN)
    had, had_right = (np.maximum(x - spent, 0) * as_they_are for x in (accepted, right))

    def enough(more: int) -> bool:
        then = -(-(n + more) * accepted // n) - spent
        own = levels(-(-(n + more) * expected // n), spent, target, delta)
        tested = (then > 0) & (own > 0)
        passing = chances_of_test(
            then[tested], bound[tested], target, own[tested], had[tested], had_right[tested]
        )
        return bool((passing >= chance).any())

    return _smallest(enough, REACH * n)


def least_shares(accepted: Counts, right: Counts, missed: float) -> Array:
    """Return the bound of the share that is right, of each test; it is too high with ``missed``."""
    from scipy.special import betaincinv

    found = betaincinv(np.maximum(right, 1), accepted - right + 1, missed)
    return np.where(right > 0, found, 0.0)


def chances_of_test(
    n: Counts, share: Array, target: float, level: Array, had: Any = 0, had_right: Any = 0
) -> Array:
    """Return the chance that n hits pass a test, each of them right with a probability.

    Parameters
    ----------
    n : [J]
        Number of hits that each test counts.
    share, level : [J]
        Probability of each hit to be right, and level of the test.
    target : float in (0, 1)
        Precision that is tested.
    had, had_right : [J] or int
        Number of the n hits that are known, and of right ones among them. Default: 0, none.

    Examples
    --------
    >>> n, level = np.array([28, 29, 29]), np.full(3, 0.05)
    >>> chances_of_test(n, np.array([1, 1, 0.99]), 0.9, level).round(3)
    array([0.   , 1.   , 0.747])
    """
    from scipy.special import bdtrc, bdtrik

    known = np.where(target**n <= level, n, 1_000)  # below that, none passes
    fails = np.ceil(bdtrik(1 - level, known, target))
    lower = np.maximum(fails - 1, 0)
    fails = np.where(bdtrc(lower, known, target) <= level, lower, fails)
    new, most = n - had, fails - had_right  # so many of the new ones right do not suffice
    chance = np.where(most < 0, 1.0, bdtrc(np.clip(most, 0, new), np.maximum(new, 1), share))
    return np.where((known == n) & (most < new), chance, 0.0)


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
