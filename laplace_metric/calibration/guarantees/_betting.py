"""Rates of queries that come in groups: frames of one video, questions of one session.

Queries of a group resemble each other, groups are independent draws. With A_g accepted answers of
group g, R_g of them right, a precision is at most the target where

    E[R_g - target A_g] <= 0

(a ratio of sums). Every answer weighs the same, so that the ratio that is tested is the one that a
rule prints: a group that counted for less would hide its errors. Let a group have at most c
answers. With the gain of a group, Z_g = (R_g - target A_g) / c, in [-target, 1 - target], bets

    K_g = prod_{i <= g} (1 + lambda_i Z_i),   0 <= lambda_i <= 1 / target, set before Z_i is seen,

are a non-negative supermartingale where the hypothesis holds, so that P(max_g K_g >= 1 / delta) <=
delta (Ville 1939) and 1 / max_g K_g is a p-value: betting for the mean of a bounded variable
(Waudby-Smith & Ramdas 2024, JRSS B 86). Given their number n, the groups whose gain is not 0 are
independent, and their losses 1 - target - Z_g, in [0, 1], have a mean of 1 - target at least, so
that e P(Bin(n, 1 - target) <= ceil(sum of losses)) is a p-value, too (Bentkus 2004; Bates et al.
2021). Twice the smaller one is tested. Neither is asymptotic, nor assumes how alike a group is, but
c must be known and not estimated: it is for groups of one size, and for the hits of a list of k
places. Of the answers with one label c is the size of the whole groups: a new one may have nothing
else. Where sizes vary, a new group may be larger than all before: these are tested below.
Thresholds are tested in the sequences of ``_test_sequences``.

Other rates are means of a gain, too: of a recall, sum of right answers (accepted - target) / c; of
a rate of false answers, sum of wrong ones (target - accepted) / c. Their thresholds are tested in
one sequence, from the one that keeps the rate for certain.

For the precision of all hits that are passed on, the hits of a query are a group.

A test of groups of unequal size, and of those that no theorem covers anyway: simulated.

With Z_1, ..., Z_n the gains of the groups that have an answer, every answer of the
same weight, and L = 1.5 groups more that were lost as a whole, Z = -target c r,

    T = mean / (sd / sqrt(n + L)),   p-value P(t_(n + L - 1) >= T)

with c = sum_g N_g^3 / sum_g N_g^2 of the numbers N_g that the lowest threshold accepts, the size of
the groups that decide where sizes vary, and r the share of them that is accepted. Student's test is
of normal means; gains are skewed, since a group has much to lose and little to gain. The lost
groups make up for it: without them, groups that are all right have no variance. For equal groups
that are right or wrong as a whole the level is known exactly: for targets from .5 to .99 and 20 to
800 groups it is at most 1.0 of .05 and 1.1 of .025, on average 0.2 to 0.8 of them. With L = 1 it is
up to 1.4 of .05. For sizes that are geometric, Pareto, or 1 and 20 to 200, groups that are right or
wrong as a whole and large ones that are wrong more often, it is at most 1.1 of .05 from 36 groups
to 1,000, but for samples without a single large group, of which no test can know. Lost groups of
the mean size break it up to 12-fold, of the size in which an answer is found on average 4-fold. It
answers more than betting, which is proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.guarantees._test_sequences import (
    NEVER,
    SHARES,
    levels,
    lowest_reached,
    run_of,
)

TINY = np.finfo(float).tiny
LOST = 1.5
"""Groups that are added, lost as a whole."""


def student_p_values(gains: Array, low: float, size: Array) -> Array:
    """Return a p-value [T] of "the mean gain is at most 0", for gains [G, T] of G groups.

    Parameters
    ----------
    gains : [G, T]
        Gain of each group, in [-low size, (1 - low) size].
    low : float in (0, 1)
        Largest loss of an answer.
    size : [G, T]
        Number of answers of each group, in any unit; largest at the lowest threshold.

    Examples
    --------
    >>> student_p_values(np.full((35, 1), 0.1), 0.9, np.ones((35, 1))) <= 0.05
    array([ True])
    """
    from scipy.special import stdtr

    whole = size.max(1)
    there = size > 0
    n, accepted = there.sum(0) + LOST, size.sum(0) / np.maximum(whole @ there, TINY)
    lost = low * decisive_size(whole) * accepted
    mean = (gains.sum(0) - LOST * lost) / n
    variance = ((gains**2).sum(0) + LOST * lost**2 - n * mean**2) / np.maximum(n - 1, 1)
    t = mean / np.sqrt(np.maximum(variance, TINY) / n)
    return np.asarray(np.where(n > 2, stdtr(np.maximum(n - 1, 1), -t), 1.0))


def decisive_size(sizes: Array) -> float:
    """Return the size ``sum N^3 / sum N^2`` of the groups [G] that decide on a ratio of sums.

    Examples
    --------
    >>> decisive_size(np.array([5.0, 5.0])), decisive_size(np.array([1.0] * 99 + [50.0])) > 48
    (5.0, True)
    """
    return float((sizes**3).sum() / max((sizes**2).sum(), TINY))


MOST_THRESHOLDS = 200
"""Thresholds that are tested: more are nearer to each other than they can be told apart."""
UNEVEN = 1.5
"""Groups for each one of equal size, from which on a refusal names the largest."""
BETS, SAFE, PRIOR = 24, 0.98, 4
"""Number of bets; the largest, as a share of what ruins; groups that the first bet is made for."""


@dataclass(frozen=True)
class GroupTests:
    """Answers of groups, by which thresholds are tested.

    Parameters
    ----------
    p : [m]
        Probability of each answer, or hit; ``NEVER`` where nothing is answered.
    group : [m]
        Number of its group, from 0.
    n_groups : int
        Number of groups.
    size : float
        Number of answers of a full group, c: the most there can be, or ``decisive_size``.
    grid : [T]
        Thresholds, from high to low.
    expected : [J]
        Number of full groups that each start is expected to accept.
    starts : [J]
        Place of each start.
    proven : bool
        Test by ``group_p_values``, proven; else by ``student_p_values``, simulated.
    """

    p: Array
    group: npt.NDArray[np.intp]
    n_groups: int
    size: float
    grid: Array
    expected: npt.NDArray[np.int64]
    starts: npt.NDArray[np.intp]
    proven: bool

    @classmethod
    def of(
        cls,
        p: Array,
        group: npt.NDArray[np.intp],
        n_groups: int,
        most: int | None,
        others: Array | None = None,
    ) -> GroupTests:
        """Return the tests of answers; thresholds are among ``others``, or, with None, among p.

        Parameters
        ----------
        p, group : [m]
            Probability and group of each answer.
        n_groups : int
            Number of groups.
        most : int or None
            Most answers that a group can have, with which the tests follow from a theorem. None:
            sizes vary, and the tests are simulated.
        others : [m'] or None
            Probabilities of other answers.
        """
        given = np.sort(p[p > NEVER] if others is None else others)[::-1]
        ranks = np.array([-(-len(given) * s.numerator // s.denominator) for s in SHARES])
        firsts = given[ranks - 1] if len(given) else np.empty(0)
        even = np.linspace(0, len(given) - 1, min(len(given), MOST_THRESHOLDS)).astype(int)
        grid = np.unique(np.concatenate([given[even], firsts]))[::-1]
        sizes = np.bincount(group[p > NEVER], minlength=n_groups)
        size = max(decisive_size(sizes.astype(np.float64)), 1.0) if most is None else most
        expected = np.array([int(sizes.sum() / size * float(share)) for share in SHARES])
        starts = np.searchsorted(-grid, -firsts)
        proven = most is not None
        return cls(p, group, n_groups, size, grid, expected[: len(firsts)], starts, proven)

    def fewest(self, low: float, delta: float, unit: str) -> tuple[int, str]:
        """Return the groups like these that a rate needs at the very least, and this in words.

        They count for ``(sum N)^2 / sum N^2`` groups of equal size (Kish 1965).

        Parameters
        ----------
        low, delta : float in (0, 1)
            Largest loss of an answer, and probability that the guarantee does not hold.
        unit : "groups" | "queries"
            Name of the groups.
        """
        sizes = np.bincount(self.group[self.p > NEVER], minlength=self.n_groups).astype(float)
        uneven = self.n_groups * (sizes**2).sum() / max(sizes.sum() ** 2, 1.0)
        least = fewest_groups(low, delta / 2)
        least = least if self.proven else math.ceil(max(uneven, 1.0) * least - 1e-9)
        told = f"it takes {least:,} {unit} at least, without any error"
        if not self.proven and uneven >= UNEVEN:
            largest = sizes.max() / sizes.sum()
            told += (
                f", as they are of very unequal size: the largest has {largest:.0%} of all, and "
                f"they count for {self.n_groups / uneven:,.0f} equal ones"
            )
        return least, told

    def lacking(self, right: Flags, target: float, delta: float, unit: str) -> tuple[str, bool]:
        """Return what groups lack for a precision that none of their thresholds keeps, in words.

        That is their number, if not even groups without an error would do; else right answers. With
        it comes whether more of such groups may do.
        """
        least, told = self.fewest(target, delta, unit)
        if self.n_groups < least:
            return told, True
        place = np.searchsorted(-self.grid[self.starts], -self.p[self.p > NEVER], side="left")
        counts = (
            np.bincount(place, worth, len(self.starts) + 1)[: len(self.starts)].cumsum()
            for worth in (None, right[self.p > NEVER])
        )
        accepted, good = (count.astype(int) for count in counts)
        chances = self._precision_chances(right, target)[self.starts]
        above = good > target * accepted
        if not above.any():
            at = int((good / np.maximum(accepted, 1)).argmax())
            of = f"of the {accepted[at]:,} surest answers, {good[at]:,} are right"
            return f"at no threshold enough are right ({of})", False
        at = int(np.where(above, chances, np.inf).argmin())
        return (
            f"of the {accepted[at]:,} surest answers, {good[at]:,} are right, "
            f"{good[at] / accepted[at]:.1%}, which is too near to {target:.4g} for so few {unit} "
            f"({told})"
        ), True

    def gains(self, worth: Array, base: Array | None = None) -> Array:
        """Return the gain of each group at each threshold [G, T].

        Parameters
        ----------
        worth : [m]
            Gain of an answer that is accepted.
        base : [m] or None
            Gain of an answer whether it is accepted or not. None, the default: 0.
        """
        place = np.searchsorted(-self.grid, -self.p, side="left")
        answered = (self.p > NEVER) & (place < len(self.grid))
        found = np.zeros((self.n_groups, len(self.grid)))
        at = self.group[answered], place[answered]
        np.add.at(found, at, worth[answered] / self.size)
        found = found.cumsum(1)
        if base is not None:
            found += np.bincount(self.group, base / self.size, minlength=self.n_groups)[:, None]
        return found

    def _precision_chances(self, right: Flags, target: float) -> Array:
        gains = self.gains(right.astype(np.float64) - target)
        return self._chances(gains, target, self.gains(np.ones(len(right))))

    def _chances(self, gains: Array, low: float, size: Array) -> Array:
        """Return a p-value [T] of "the mean gain is at most 0"."""
        return group_p_values(gains, low) if self.proven else student_p_values(gains, low, size)

    def lowest_precise(self, right: Flags, target: float, delta: float) -> float | None:
        """Return the lowest threshold that keeps a precision; None if none does."""
        chances = self._precision_chances(right, target)
        own = levels(self.expected, 0, target, delta)
        found = lowest_reached(chances, chances[self.starts], self.starts, own, spent=0)
        return None if found is None else float(self.grid[found.at])

    def largest_precision(self, right: Flags, delta: float) -> tuple[float, float] | None:
        """Return the largest precision in hundredths, and its threshold; None for none.

        At each start, precisions are tested from low to high at delta / J.
        """
        hundredths = np.arange(1, 100) / 100
        passed = [
            self._precision_chances(right, target)[self.starts] <= delta / len(SHARES)
            for target in hundredths
        ]
        runs = np.array([run_of(each) for each in np.array(passed).T])
        if not len(runs) or runs.max() == 0:
            return None
        at = self.starts[int(np.flatnonzero(runs == runs.max())[-1])]
        return float(hundredths[runs.max() - 1]), float(self.grid[at])

    def highest_complete(self, right: Flags, target: float, delta: float) -> float | None:
        """Return the highest threshold that keeps a recall; None if none does."""
        counted = right.astype(np.float64)
        gains = self.gains(counted, -target * counted)
        chances = self._chances(gains, target, self.gains(0 * counted, counted))
        steps = run_of(chances[::-1] <= delta)
        return float(self.grid[::-1][steps - 1]) if steps else None

    def lowest_of_false(self, false: Flags, target: float, delta: float) -> float | None:
        """Return the lowest threshold that keeps a rate of false answers; None if none does.

        A threshold above all probabilities accepts nothing, and comes first.
        """
        counted = false.astype(np.float64)
        above = np.append(np.nextafter(self.grid[:1], 2.0), self.grid)
        tests = replace(self, grid=above)
        gains = tests.gains(-counted, target * counted)
        chances = self._chances(gains, 1 - target, tests.gains(0 * counted, counted))
        steps = run_of(chances <= delta)
        return float(above[steps - 1]) if steps else None


def group_p_values(gains: Array, low: float) -> Array:
    """Return a p-value [T] of "the mean gain is at most 0", for gains [G, T] of G groups.

    Twice the smaller of two: betting finds groups that vary little, Bentkus' bound those that are
    right or wrong as a whole.

    Parameters
    ----------
    gains : [G, T]
        Gain of each group, in [-low, 1 - low].
    low : float in (0, 1)
        Largest loss of a group.

    Examples
    --------
    >>> gains = np.full((60, 1), 0.1)
    >>> group_p_values(gains, 0.9).round(3), group_p_values(-gains, 0.9)
    (array([0.007]), array([1.]))
    """
    both = np.minimum(_betting(gains, low), _bentkus(gains, low))
    return np.asarray(np.minimum(2 * both, 1.0))


def _betting(gains: Array, low: float) -> Array:
    """Return ``1 / max_g K_g``, each bet the best constant one on the groups before it."""
    bets = np.linspace(0, SAFE / low, BETS)[:, None]
    win = (1 + low) / 2
    past = PRIOR * (win * np.log1p(bets * (1 - low)) + (1 - win) * np.log1p(-bets * low))
    past = np.repeat(past, gains.shape[1], 1)
    wealth, most = np.zeros(gains.shape[1]), np.zeros(gains.shape[1])
    for row in gains[np.random.default_rng(0).permutation(len(gains))]:  # a file may be sorted
        wealth += np.log1p(bets[past.argmax(0), 0] * row)
        most = np.maximum(most, wealth)
        past += np.log1p(bets * row)
    return np.asarray(np.exp(-most))


def _bentkus(gains: Array, low: float) -> Array:
    """Return ``e P(Bin(n, 1 - low) <= ceil(sum of losses))`` of the groups whose gain is not 0."""
    from scipy.special import bdtr

    n = (gains != 0).sum(0)
    lost = np.ceil(n * (1 - low) - gains.sum(0) - 1e-9).clip(0, n)
    return np.asarray(np.where(n > 0, np.e * bdtr(lost, n.clip(1), 1 - low), 1.0))


def fewest_groups(low: float, delta: float, full: float = 1.0) -> int:
    """Return the number of equal groups without an error that a rate needs at the very least.

    Parameters
    ----------
    low, delta : float in (0, 1)
        Largest loss of an answer, and probability that the guarantee does not hold.
    full : float in (0, 1]
        Share of the answers of a group that there are. Default: 1.

    Examples
    --------
    >>> fewest_groups(0.9, 0.05), fewest_groups(0.9, 0.05, 0.05)
    (29, 541)
    """
    return int(np.ceil(np.log(delta) / np.log(low / (low + full * (1 - low)))))
