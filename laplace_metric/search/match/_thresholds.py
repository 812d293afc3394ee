"""Which probability counts as a match, so that a promise holds with a stated confidence.

A promise is a hypothesis test on held-out queries (Angelopoulos et al. 2021, Learn then Test):

    precision   of n accepted hits s are right; reject "precision <= target" if
                P(Bin(n, target) >= s) <= delta / J. J = 10 sequences of thresholds, from those that
                accept a tenth of all hits, two tenths, ..., all towards lower ones, until the first
                that is not rejected.
    largest     of the ten sequences' first tests, (s_j of n_j accepted hits): with probability
                1 - delta every precision is at least its bound b_j, P(Bin(n_j, b_j) >= s_j) =
                delta / J; promise the largest b_j, rounded down to a hundredth.
    recall      of n right hits s are accepted; the highest threshold at which
                P(Bin(n, target) >= s) <= delta. Acceptance only falls: one sequence.

The probability that a threshold does not keep its promise is at most delta = 1 - confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores, check_share
from laplace_metric.errors import InputError

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
STARTS = 10


@dataclass(frozen=True)
class Threshold:
    """Accept a nearest neighbour whose match probability is at least ``value``.

    Parameters
    ----------
    value : float in [0, 1]
    quantity : "precision" | "recall"
        Share of accepted hits that are right; share of right hits that are accepted.
    target, confidence : float
        The promise, and the probability with which it holds.
    estimate, lower : float
        What held-out queries gave, and the lower bound of the test of this threshold. It was
        chosen for the target, so only the target holds with ``confidence``.
    accepted : float
        Share of held-out queries whose nearest neighbour is accepted.
    n : int
        Held-out queries.
    """

    value: float
    quantity: str
    target: float
    confidence: float
    estimate: float
    lower: float
    accepted: float
    n: int

    def __str__(self) -> str:
        return (
            f"match if probability >= {self.value:.4f}: {self.quantity} {self.estimate:.1%}, at "
            f"least {100 * self.target:g}% with {100 * self.confidence:g}% confidence; accepts "
            f"{self.accepted:.1%} of {self.n} held-out queries"
        )


def threshold_for(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    precision: float | None = None,
    recall: float | None = None,
    confidence: float = 0.95,
) -> Threshold:
    """The lowest threshold that keeps ``precision``, or the highest that keeps ``recall``.

    Parameters
    ----------
    probability : [n]
        In [0, 1], of the nearest neighbour of each held-out query.
    correct : [n]
        Whether it is a match: booleans, or 0 and 1.
    precision, recall : float in (0, 1)
        What to promise; one of the two.
    confidence : float in (0, 1)

    Raises
    ------
    InputError
        Unless one target in (0, 1) is given, and as many hits as probabilities in [0, 1]; if no
        threshold keeps it, with the best that one does.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 1000)
    >>> print(threshold_for(p, p > 0.5, recall=0.9))
    match if probability >= 0.5385: recall 92.4%, at least 90% with 95% confidence; accepts \
46.2% of 1000 held-out queries
    """
    if (precision is None) == (recall is None):
        raise InputError("pass either precision= or recall=.")
    quantity, target = ("precision", precision) if recall is None else ("recall", recall)
    assert target is not None
    promised, confidence = check_share(quantity, target), check_share("confidence", confidence)
    p, right = held_out_answers(probability, correct)
    search = _for_precision if recall is None else _for_recall
    value, passed, total, level = search(p, right, promised, 1 - confidence)
    bound = lower_bound(passed, total, level)
    estimate, share = passed / total, float((p >= value).mean())
    return Threshold(value, quantity, promised, confidence, estimate, bound, share, len(p))


def largest_promise(
    probability: ArrayLike, correct: ArrayLike, *, confidence: float = 0.95
) -> Threshold:
    """The largest precision, in whole per cent, that held-out queries can promise.

    It is chosen by the data, and holds with ``confidence`` all the same: the bounds of which it is
    the largest hold all at once. Of the thresholds with such a bound, the lowest.

    Parameters
    ----------
    probability, correct : [n]
        As for ``threshold_for``.
    confidence : float in (0, 1)

    Raises
    ------
    InputError
        As ``threshold_for``; and if not even 1 % can be promised.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 100)
    >>> print(largest_promise(p, p > 0.5))
    match if probability >= 0.5051: precision 100.0%, at least 89% with 95% confidence; accepts \
50.0% of 100 held-out queries
    """
    p, right = held_out_answers(probability, correct)
    level = (1 - check_share("confidence", confidence)) / STARTS
    values, accepted, good = _accepted(p, right)
    starts = _starts(accepted)
    bounds = np.array([lower_bound(int(good[s]), int(accepted[s]), level) for s in starts])
    target = float(np.floor(100 * bounds.max()) / 100)
    if target <= 0:
        raise InputError(
            f"no precision can be promised: of {len(p)} queries {int(right.sum())} are answered "
            "right. Calibrate on more queries."
        )
    chosen = int(np.flatnonzero(bounds >= target)[-1])
    last = starts[chosen]
    share, estimate = float(accepted[last] / len(p)), float(good[last] / accepted[last])
    found = estimate, float(bounds[chosen]), share, len(p)
    return Threshold(float(values[last]), "precision", target, confidence, *found)


def held_out_answers(
    probability: ArrayLike, correct: ArrayLike
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Checked: probabilities [n], and which were right [n]."""
    scores = as_scores("probability", probability)
    p = as_rates("probability", scores, scores, "correct").cpu().numpy()
    right = as_rates("correct", correct, scores, "probability").cpu().numpy()
    if not np.isin(right, (0, 1)).all():
        raise InputError("correct has values between 0 and 1: pass booleans, or 0 and 1.")
    return p, right == 1


def lower_bound(successes: int, n: int, delta: float) -> float:
    """Clopper & Pearson's: ``P(Bin(n, bound) >= successes) = delta``."""
    from scipy.stats import beta

    return 0.0 if successes == 0 else float(beta.ppf(delta, successes, n - successes + 1))


Chosen = tuple[float, int, int, float]
"""Threshold, successes, trials and the level that each test had."""


def _for_precision(p: Array, right: npt.NDArray[np.bool_], target: float, delta: float) -> Chosen:
    values, accepted, good = _accepted(p, right)
    rejected = _rejected(good, accepted, target, delta / STARTS)
    starts = _starts(accepted)
    if not rejected[starts].any():
        first = good[starts], accepted[starts]
        raise InputError(_unreachable("precision", target, *first, delta / STARTS))
    last = max(int(s) + _run(rejected[s:]) for s in starts if rejected[s]) - 1
    return float(values[last]), int(good[last]), int(accepted[last]), delta / STARTS


def _for_recall(p: Array, right: npt.NDArray[np.bool_], target: float, delta: float) -> Chosen:
    of_matches = np.sort(p[right])
    values, first = np.unique(of_matches, return_index=True)
    good, total = len(of_matches) - first, np.full(len(first), len(of_matches))
    steps = _run(_rejected(good, total, target, delta))
    if steps == 0:
        raise InputError(_unreachable("recall", target, good[:1], total[:1], delta))
    return float(values[steps - 1]), int(good[steps - 1]), len(of_matches), delta


def _accepted(p: Array, right: npt.NDArray[np.bool_]) -> tuple[Array, Counts, Counts]:
    """Thresholds from high to low, how many hits each accepts, and how many of them are right."""
    order = np.argsort(-p, kind="stable")
    ordered = p[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(p) - 1)  # of each group of ties
    return ordered[last], last + 1, np.cumsum(right[order])[last]


def _starts(accepted: Counts) -> npt.NDArray[np.intp]:
    """Where ``accepted`` reaches a tenth of all hits, two tenths, ..., all."""
    shares = -(-int(accepted[-1]) * np.arange(1, STARTS + 1) // STARTS)
    return np.unique(np.searchsorted(accepted, shares))


def first_tests(p: Array, right: npt.NDArray[np.bool_]) -> tuple[Counts, Counts]:
    """Of each sequence's first test, how many hits [J] it accepts, and how many are right [J]."""
    _, accepted, good = _accepted(p, right)
    starts = _starts(accepted)
    return accepted[starts], good[starts]


def _rejected(successes: Counts, n: Counts, target: float, level: float) -> npt.NDArray[np.bool_]:
    from scipy.stats import binom

    return np.asarray(binom.sf(successes - 1, n, target) <= level)


def _run(rejected: npt.NDArray[np.bool_]) -> int:
    """Length of the run of true values at the beginning."""
    return len(rejected) if rejected.all() else int(np.argmin(rejected))


def _unreachable(name: str, target: float, good: Counts, n: Counts, level: float) -> str:
    """With the best bound where a sequence starts: no larger target is reached."""
    starts = list(zip(good.tolist(), n.tolist(), strict=True)) or [(0, 0)]  # no match at all
    bound, right, of = max((lower_bound(s, t, level), s, t) for s, t in starts)
    least = int(np.ceil(np.log(level) / np.log(target)))
    advice = (
        f"Ask for less, or calibrate on more queries ({least} accepted ones are the least, all of "
        "them right)."
        if any(s >= target * t for s, t in starts)
        else "Even the surest are right less often than that: ask for less. More queries alone are "
        "not likely to help."
    )
    return (
        f"{name}={target:g} cannot be promised: the best lower bound of these queries is "
        f"{bound:.3f}, where {right} of {of} are right. {advice}"
    )
