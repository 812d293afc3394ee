"""Thresholds from high to low, what each accepts of held-out hits, and exact tests of shares."""

from __future__ import annotations

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


def accepted_by(p: Array, right: Flags) -> tuple[Array, Counts, Counts]:
    """Thresholds from high to low, how many hits each accepts, and how many of them are right."""
    order = np.argsort(-p, kind="stable")[: int((p > NEVER).sum())]
    ordered = p[order]
    last = np.flatnonzero(np.diff(ordered, append=-np.inf))  # of each group of ties
    good = np.cumsum(right[order], dtype=np.int64)
    return ordered[last], (last + 1).astype(np.int64), good[last]


def starts_of(accepted: Counts) -> npt.NDArray[np.intp]:
    """Where ``accepted`` reaches a tenth of all hits, two tenths, ..., all."""
    shares = -(-int(accepted[-1:].sum()) * np.arange(1, STARTS + 1) // STARTS)
    return np.unique(np.searchsorted(accepted, shares))[: len(accepted)]


def first_tests(p: Array, right: Flags) -> tuple[Counts, Counts]:
    """Of each sequence's first test, how many hits [J] it accepts, and how many are right [J]."""
    _, accepted, good = accepted_by(p, right)
    starts = starts_of(accepted)
    return accepted[starts], good[starts]


def rejected(successes: Counts, n: Counts, target: float, level: float) -> Flags:
    """Whether ``P(Bin(n, target) >= successes) <= level``, each."""
    from scipy.stats import binom

    return np.asarray(binom.sf(successes - 1, n, target) <= level)


def run_of(flags: Flags) -> int:
    """Length of the run of true values at the beginning."""
    return len(flags) if flags.all() else int(np.argmin(flags))
