"""Thresholds from high to low, and the held-out hits by which each of them is tested."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._arrays import Array, Counts, Flags
from laplace_metric.calibration.guarantees._binomial import lower_bound, rejected, run_of

STARTS = 10
"""Sequences of thresholds, J."""
NEVER = -1.0
"""The probability of a hit that no threshold accepts."""


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
        Place of the first threshold of each sequence.
    spent : int
        Number of right hits that each test leaves out: 1 if a tested hit is the threshold, else 0.
    """

    values: Array
    accepted: Counts
    right: Counts
    starts: npt.NDArray[np.intp]
    spent: int

    @classmethod
    def of(cls, p: Array, right: Flags, thresholds: Array | None = None) -> Tests:
        """Return the tests of ``thresholds``, probabilities of other hits; None: those of ``p``."""
        answered = p > NEVER
        grid = p[answered] if thresholds is None else thresholds
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
        """Return the lower bound of the precision at one threshold, by its test."""
        right, accepted = int(self.right[at]), int(self.accepted[at])
        return lower_bound(right - self.spent, accepted - self.spent, level) if right else 0.0
