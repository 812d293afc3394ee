"""Thresholds from high to low, what each accepts of held-out hits, and exact tests of shares.

How many more held-out queries would be enough to guarantee a precision.

A guarantee tests n held-out queries (``threshold_for``): of the n_s surest, a share s of all, k_s
are right, and the test passes if

    P(Bin(n_s, target) >= k_s) <= delta / J

for one of J = 10 shares. With m more queries, answered as these are, n'_s = ceil((n + m) s) are
accepted and k'_s of them are right. What is known of the share that is right, under Jeffreys'
prior, and of the new ones among them is

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
import numpy.typing as npt

from laplace_metric._utils.validation import ArrayLike, as_floats, check_share
from laplace_metric.errors import InputError, NonFiniteError

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
STARTS = 10
NEVER = -1.0
"""The probability of a hit that no threshold accepts."""
CHANCE = 0.8
PRIOR = 0.5
"""Jeffreys', in successes and in failures."""
REACH = 20
"""How many times the queries that there are; beyond, the prior speaks and not they."""


def held_out_answers(
    probability: ArrayLike, correct: ArrayLike, abstained: ArrayLike | None = None
) -> tuple[Array, Flags]:
    """Checked: probabilities [n], ``NEVER`` of those abstained from, and which were right [n]."""
    p = _rates("probability", probability)
    right = _flags("correct", correct, len(p))
    if abstained is not None:
        p = np.where(_flags("abstained", abstained, len(p)), NEVER, p)
    return p, right


def _flags(name: str, values: ArrayLike, n: int) -> Flags:
    flags = _rates(name, values, n)
    if not np.isin(flags, (0, 1)).all():
        raise InputError(f"{name} has values between 0 and 1: pass booleans, or 0 and 1.")
    return flags == 1


def _rates(name: str, values: ArrayLike, n: int | None = None) -> Array:
    """Numbers [Q] in [0, 1], as many as ``n`` probabilities."""
    rates = as_floats(name, values)
    if rates.ndim != 1 or not rates.size:
        raise InputError(f"{name} has shape {rates.shape}: pass the shape [Q], at least one row.")
    if n is not None and len(rates) != n:
        raise InputError(
            f"{name} has length {len(rates)} but probability has {n}: pass one for each row."
        )
    if not np.isfinite(rates).all():
        raise NonFiniteError(
            f"{name} holds {int((~np.isfinite(rates)).sum())} NaN or infinite values. Keep the "
            "rows where it is finite."
        )
    if rates.min() < 0 or rates.max() > 1:
        raise InputError(
            f"{name} lies in [{rates.min():g}, {rates.max():g}]: pass values in [0, 1]."
        )
    return rates


def lower_bound(successes: int, n: int, delta: float) -> float:
    """Clopper & Pearson's: ``P(Bin(n, bound) >= successes) = delta``."""
    from scipy.special import betaincinv

    return 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, delta))


@dataclass(frozen=True)
class Tests:
    """Thresholds from high to low, each with the hits by which it is tested.

    Parameters
    ----------
    values : [T]
    accepted, right : [T]
        Tested hits that each threshold accepts, and how many of them are right.
    starts : [J]
        The first threshold of each sequence.
    spent : int
        Right hits that each test leaves out: 1 where a tested hit is the threshold, else 0.
    """

    values: Array
    accepted: Counts
    right: Counts
    starts: npt.NDArray[np.intp]
    spent: int

    @classmethod
    def of(cls, p: Array, right: Flags, thresholds: ArrayLike | None = None) -> Tests:
        """With the probabilities of other hits as ``thresholds``; None: those of these hits."""
        answered = p > NEVER
        grid = p[answered] if thresholds is None else _rates("thresholds", thresholds)
        values, order = np.unique(grid)[::-1], np.argsort(-p[answered], kind="stable")
        good = np.cumsum(np.append(0, right[answered][order]), dtype=np.int64)
        accepted = np.searchsorted(-p[answered][order], -values, side="right").astype(np.int64)
        shares = -(-len(grid) * np.arange(1, STARTS + 1) // STARTS)
        firsts = np.sort(grid)[::-1][shares - 1] if len(grid) else grid
        starts = np.unique(np.searchsorted(-values, -firsts))
        return cls(values, accepted, good[accepted], starts, int(thresholds is None))

    def rejected(self, target: float, level: float) -> Flags:
        """Return whether the test of each threshold rejects "precision <= target" [T]."""
        return rejected(self.right - self.spent, self.accepted - self.spent, target, level)

    def lowest(self, target: float, level: float) -> int | None:
        """Return the place of the lowest threshold that a sequence reaches; None for none."""
        passed = self.rejected(target, level)
        ends = [int(s) + run_of(passed[s:]) - 1 for s in self.starts if passed[s]]
        return max(ends, default=None)

    def bound(self, at: int, level: float) -> float:
        """Lower bound of the precision at one threshold, by its test."""
        right, accepted = int(self.right[at]), int(self.accepted[at])
        return lower_bound(right - self.spent, accepted - self.spent, level) if right else 0.0


def rejected(successes: Counts, n: Counts, target: float, level: float) -> Flags:
    """Return whether ``P(Bin(n, target) >= successes) <= level``, elementwise."""
    from scipy.special import bdtrc

    return np.asarray(bdtrc(successes - 1, n, target) <= level)


def run_of(flags: Flags) -> int:
    """Length of the run of true values at the beginning."""
    return len(flags) if flags.all() else int(np.argmin(flags))


@dataclass(frozen=True)
class QueriesNeeded:
    """Queries that are missing to guarantee a precision.

    Parameters
    ----------
    more : int or None
        Queries to add, with which it can likely be guaranteed; 0 if it can be already. None if even
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
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    precision: float,
    confidence: float = 0.95,
    chance: float = CHANCE,
    abstained: ArrayLike | None = None,
    thresholds: ArrayLike | None = None,
) -> QueriesNeeded:
    """Estimate how many more held-out queries ``threshold_for`` needs to guarantee a precision.

    Parameters
    ----------
    probability : [n]
        In [0, 1], of the nearest neighbour of each held-out query.
    correct : [n]
        Whether it is a match: booleans, or 0 and 1.
    precision, confidence : float in (0, 1)
        As for ``threshold_for``.
    chance : float in (0, 1)
        That the guarantee can be made then, if new queries are answered as these are.
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
    >>> p = np.linspace(0, 1, 100)
    >>> missing = queries_needed(p, p > 0.4, precision=0.95)
    >>> missing.more, missing.right, missing.surest, missing.flawless
    (204, 60, 60, 105)
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
        return QueriesNeeded(None, 0, 0, flawless, float(beta.sf(target, PRIOR, PRIOR)))
    at = max(starts, key=lambda start: found.bound(start, level))
    surest, good = int(found.accepted[at]), int(found.right[at])
    ever = max(float(beta.sf(target, k + PRIOR, n - k + PRIOR)) for n, k in tests)
    more = _more(tests, len(p), target, level, chance, found.spent)
    return QueriesNeeded(more, surest, good, flawless, ever)


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
