"""Thresholds from high to low, what each accepts of held-out hits, and exact tests of shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores
from laplace_metric.errors import InputError

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
STARTS = 10
NEVER = -1.0
"""The probability of a hit that no threshold accepts."""


def held_out_answers(
    probability: ArrayLike, correct: ArrayLike, abstained: ArrayLike | None = None
) -> tuple[Array, Flags]:
    """Checked: probabilities [n], ``NEVER`` of those abstained from, and which were right [n]."""
    scores = as_scores("probability", probability)
    p = as_rates("probability", scores, scores, "correct").cpu().numpy()
    right = _flags("correct", correct, scores)
    if abstained is not None:
        p = np.where(_flags("abstained", abstained, scores), NEVER, p)
    return p, right


def _flags(name: str, values: ArrayLike, like: Tensor) -> Flags:
    flags = as_rates(name, values, like, "probability").cpu().numpy()
    if not np.isin(flags, (0, 1)).all():
        raise InputError(f"{name} has values between 0 and 1: pass booleans, or 0 and 1.")
    return np.asarray(flags == 1)


def lower_bound(successes: int, n: int, delta: float) -> float:
    """Clopper & Pearson's: ``P(Bin(n, bound) >= successes) = delta``."""
    from scipy.stats import beta

    return 0.0 if successes == 0 else float(beta.ppf(delta, successes, n - successes + 1))


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
        if thresholds is None:
            grid = p[answered]
        else:
            grid = as_scores("thresholds", thresholds).double().cpu().numpy()
        values, order = np.unique(grid)[::-1], np.argsort(-p[answered], kind="stable")
        good = np.cumsum(np.append(0, right[answered][order]), dtype=np.int64)
        accepted = np.searchsorted(-p[answered][order], -values, side="right").astype(np.int64)
        shares = -(-len(grid) * np.arange(1, STARTS + 1) // STARTS)
        firsts = np.sort(grid)[::-1][shares - 1] if len(grid) else grid
        starts = np.unique(np.searchsorted(-values, -firsts))
        return cls(values, accepted, good[accepted], starts, int(thresholds is None))

    def rejected(self, target: float, level: float) -> Flags:
        """Whether the test of each threshold rejects "precision <= target" [T]."""
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
    """Whether ``P(Bin(n, target) >= successes) <= level``, each."""
    from scipy.stats import binom

    return np.asarray(binom.sf(successes - 1, n, target) <= level)


def run_of(flags: Flags) -> int:
    """Length of the run of true values at the beginning."""
    return len(flags) if flags.all() else int(np.argmin(flags))
