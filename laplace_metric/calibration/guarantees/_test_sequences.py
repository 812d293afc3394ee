"""Thresholds from high to low, and the sequence of tests that accepts the lowest of them.

With N_t of n hits at or above a threshold t, S_t of them right, "precision at t <= target" has the
p-value P(Bin(N_t, target) >= S_t), exact given N_t. Thresholds are tested from high to low, in
sequences that begin at J = 10 starts s_1 > ... > s_J, each with the level delta / J (``levels``):

    level <- level + delta / J     where a sequence begins
    level <- 0                     where a threshold is not rejected, until the next one begins

so that a sequence which reaches the next start goes on with both levels: the fallback procedure
(Wiens & Dmitrienko 2005; Learn then Test, Angelopoulos et al. 2025). A start at which not even
flawless hits would be rejected gives its level to the next one.

**Proof, starts fixed by other queries.** Call t null if its precision is at most the target. Let
T_j be the first null at or below s_j, and W(T) the levels of all starts with T_j = T. The first
null that is rejected, in whichever sequence, is one of these T, and is tested at W(T) at most,
since a level from another start would have passed another null. So

    P(a null is rejected) <= sum_T P(p-value of T <= W(T)) <= sum_T W(T) = delta

whatever the precision does between thresholds. *All* real t are tested: the p-value is constant
between hits, so that the tested hits may be thresholds, ties or not, and every threshold above the
lowest down to its start is kept at once.

**Proof, starts at ranks m_j of the tested hits.** Let a better hit never be less often right, so
that the nulls are t <= t*, and let N* = N_{t*}. Starts with m_j <= N* lie at or above t*: given N*
they are fixed, and t* is tested exactly at the sum of their levels. A start with m_j > N* lies
below t*; given its value and what lies above and at it, hits are right at most as often as the
target, and it is rejected with probability delta / J at most. In all

    P(a null is rejected) <= sum_j delta / J (P(m_j <= N*) + P(m_j > N*)) = delta

Where a better hit may be less often right, a start at a tested hit is no fixed threshold: the test
with which a sequence begins leaves that hit out, P(Bin(N - 1, target) >= S - 1), which is exact
there, and what follows is held by simulation.

Exact tests and bounds of the share of successes among n independent trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._array_namespace import Array, Counts, Flags


def lower_bound(successes: int, n: int, delta: float) -> float:
    """Return Clopper & Pearson's bound: ``P(Bin(n, bound) >= successes) = delta``."""
    from scipy.special import betaincinv

    return 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, delta))


def binomial_p_values(successes: Counts, n: Counts, target: float) -> Array:
    """Return ``P(Bin(n, target) >= successes)``, elementwise; 1 without a trial."""
    from scipy.special import bdtrc

    found = bdtrc(np.maximum(successes - 1, 0), np.maximum(n, 1), target)
    return np.where(successes > 0, found, 1.0)


def run_of(flags: Flags) -> int:
    """Return the length of the run of true values at the beginning."""
    return len(flags) if flags.all() else int(np.argmin(flags))


SHARES = tuple(Fraction(*each) for each in (
    (1, 64), (1, 32), (1, 16), (1, 8), (3, 16), (1, 4), (3, 8), (1, 2), (3, 4), (1, 1)
))  # fmt: skip
"""Shares of the hits that the starts accept: a start twice as far down costs half as many."""
STARTS = len(SHARES)
"""Number of starts, J."""
FEW_SHARES = (Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1))
"""Shares where few hits are tested: each start costs a part of the level."""
NEVER = -1.0
"""The probability of a hit that no threshold accepts."""


class Passed(NamedTuple):
    """The lowest threshold that a sequence reached.

    Parameters
    ----------
    at : int
        Place of the threshold.
    level : float
        Level of its test.
    spent : int
        Number of right hits that its test left out.
    run : int
        Number of the sequence that reached it, from 1, among those of which a threshold was
        rejected; one that goes on beyond the next start is one sequence. Default: 1.
    """

    at: int
    level: float
    spent: int
    run: int = 1


@dataclass(frozen=True)
class Tests:
    """Thresholds from high to low, each with the hits by which it is tested.

    Parameters
    ----------
    values : [T]
        Thresholds, from high to low.
    accepted, right : [T]
        Number of tested hits that each threshold accepts, and of right ones among them.
    starts : [J]
        Place of each start.
    expected : [J]
        Number of hits that each start is expected to accept, by which its level is chosen.
    spent : int
        Number of right hits that the test of a start leaves out: 1 if a tested hit is the
        threshold, else 0.
    """

    values: Array
    accepted: Counts
    right: Counts
    starts: npt.NDArray[np.intp]
    expected: Counts
    spent: int

    @classmethod
    def of(
        cls,
        p: Array,
        right: Flags,
        others: Array | None = None,
        shares: Sequence[Fraction] = SHARES,
    ) -> Tests:
        """Return the tests of hits ``p``; starts are among ``others``, or, with None, among p."""
        answered = p > NEVER
        tested = p[answered]
        grid = np.sort(tested if others is None else others)[::-1]
        ranks = np.array([-(-len(grid) * s.numerator // s.denominator) for s in shares])
        firsts = grid[ranks - 1] if len(grid) else np.full(len(shares), np.inf)
        values = np.unique(np.concatenate([tested, firsts[np.isfinite(firsts)]]))[::-1]
        order = np.argsort(-tested, kind="stable")
        good = np.cumsum(np.append(0, right[answered][order]), dtype=np.int64)
        accepted = np.searchsorted(-tested[order], -values, side="right").astype(np.int64)
        expected = ranks if others is None else ranks * len(tested) // max(1, len(grid))
        starts = np.searchsorted(-values, -firsts)[: len(shares) if len(grid) else 0]
        return cls(
            values, accepted, good[accepted], starts, expected[: len(starts)], int(others is None)
        )

    def lowest(self, target: float, delta: float) -> Passed | None:
        """Return the lowest threshold that a sequence reaches; None for none."""
        chances = binomial_p_values(self.right, self.accepted, target)
        starts = len(self.expected) or STARTS
        own = levels(self.expected, self.spent, target, delta, starts)
        return lowest_reached(chances, self.first(target), self.starts, own, spent=self.spent)

    def first(self, target: float) -> Array:
        """Return the p-value of each start, with which a sequence begins [J]."""
        right, accepted = self.right[self.starts], self.accepted[self.starts]
        return binomial_p_values(right - self.spent, accepted - self.spent, target)

    def bound(self, at: int, level: float, spent: int | None = None) -> float:
        """Return the lower bound of the precision at one threshold, by the test of a start."""
        out = self.spent if spent is None else spent
        right, accepted = int(self.right[at]), int(self.accepted[at])
        return lower_bound(right - out, accepted - out, level) if right else 0.0


def lowest_reached(
    chances: Array, first: Array, starts: npt.NDArray[np.intp], own: Array, *, spent: int
) -> Passed | None:
    """Return the lowest threshold that a sequence reaches; None if none begins.

    Parameters
    ----------
    chances : [T]
        Statistical p-value of each threshold, from high to low.
    first : [J]
        Statistical p-value of each start, where a sequence begins.
    starts : [J]
        Place of each start.
    own : [J]
        Level of each start.
    spent : int
        Number of right hits that the test of a start leaves out.
    """
    ends = np.append(starts[1:], len(chances))[: len(starts)]
    found, level, reached, runs = None, 0.0, False, 0
    for start, end, chance, more in zip(starts.tolist(), ends.tolist(), first, own, strict=True):
        level += float(more)
        if start == end:  # of starts at one place, the last one begins
            continue
        if not reached and chance > level:
            level = 0.0
            continue
        # the first test of a sequence has been made without the hit at its own threshold
        made = 0 if reached else 1
        passed = made + run_of(chances[start + made : end] <= level)
        if passed:
            runs += not reached
            last = Passed(start + passed - 1, level, spent if passed == made else 0, runs)
            found = last if found is None or last.at > found.at else found
        reached = passed == end - start
        level = level if reached else 0.0
    return found


def levels(
    expected: Counts, spent: int, target: float, delta: float, starts: int = STARTS
) -> Array:
    """Return the level of each start, which sum to ``delta`` at most.

    A start has delta / J, and those of the starts before it that could not be rejected if all hits
    were right.

    Parameters
    ----------
    expected : [J]
        Number of hits that each start is expected to accept.
    spent : int
        Number of right hits that the test of a start leaves out.
    target, delta : float in (0, 1)
        Precision, and probability that the guarantee does not hold.
    starts : int
        Number of starts, J. Default: 10.

    Examples
    --------
    >>> (levels(np.array([20, 40, 60, 80]), 0, 0.9, 0.04) / 0.04 * STARTS).round().tolist()
    [0.0, 0.0, 3.0, 1.0]
    """
    own, saved = np.full(len(expected), delta / starts), 0.0
    for place, accepted in enumerate(expected):
        if target ** max(int(accepted) - spent, 0) > own[place] + saved:
            saved, own[place] = saved + own[place], 0.0
        else:
            own[place] += saved
            break
    return own
