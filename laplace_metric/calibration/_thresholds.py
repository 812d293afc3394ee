"""The smallest accepted probability, so that a guarantee holds with a stated confidence.

A guarantee is a hypothesis test on held-out queries (Angelopoulos et al. 2025, Learn then Test,
Annals of Applied Statistics 19):

    precision   of n accepted hits s are right; reject "precision <= target" if
                P(Bin(n, target) >= s) <= delta / J. J = 10 sequences of thresholds, from those that
                accept a tenth of all hits, two tenths, ..., all towards lower ones, until the first
                that is not rejected.
    largest     of the ten sequences' first tests, (s_j of n_j accepted hits): with probability
                1 - delta every precision is at least its bound b_j, P(Bin(n_j, b_j) >= s_j) =
                delta / J; guarantee the largest b_j, rounded down to a hundredth.
    recall      of n right hits s are accepted; the highest threshold at which
                P(Bin(n, target) >= s) <= delta. Acceptance only falls: one sequence.

The probability that a threshold does not keep its guarantee is at most delta = 1 - confidence:

    precision   The thresholds come from other queries, those that fitted the probability. Given
                these, each threshold is fixed; given n, s is Bin(n, its precision), ties or not.
                The first threshold of a sequence whose precision is too low is rejected with
                probability delta / J at most, and none behind it is tested before.
    recall      Of n right hits, the share of all that lies above the i-th smallest is
                Beta(n - i + 1, i) (Wilks 1941), or more with ties: the test is exact though its
                thresholds are tested hits.

Where no other queries are given, precision is tested at the probabilities of the tested hits
themselves. One of n then is the threshold, and s is Bin(n - 1, precision) and one Bernoulli: the
test leaves it out as if it were right, P(Bin(n - 1, target) >= s - 1). That is exact where each
sequence starts and where precision only falls from there; elsewhere it is held by simulation. Hits
that are abstained from whatever their probability is, such as those of unknown queries, are
accepted by no threshold: a precision is one of the others, a recall is one of all. A calibration
judges each held-out query by all other known ones, as it does those to come; that they judge each
other is beyond the theorem, which wants a rule made without them, and is held by simulation.

A cross-fitted calibration tests each hit by a fit to other queries, and answers with the fit to
all. No theorem covers the step from one to the other: simulated (``benchmarks/retrieval``). A
recall, whose test is exact, has no room for that step: it is tested at delta / 2 there.

Rates of accepted hits and their guarantees, as functions of held-out arrays.

FPIR  false positive identification rate, 1:N: share of the queries without a match in the
      collection whose first hit is accepted (ISO/IEC 19795-1); FNIR: share of the queries with one
      whose first hit is wrong, or not accepted
FMR   false match rate, 1:1: share of the comparisons that are no match and are accepted; FNMR:
      share of those that are one and are not

Of n probabilities that should be rejected, p_(1) >= p_(2) >= ..., accept what is above p_(r). The
rate is then Beta(r, n - r + 1) distributed, or smaller with ties (Wilks 1941), so that

    P(rate > target) = P(Bin(n, target) <= r - 1)

of which r is the largest that is at most delta: exact, though the threshold is a tested hit. It
takes independent draws: of new classes one query each, for queries of a class resemble each other,
and at most one comparison a query. Where no query has more than m comparisons that are no match, a
number from 1 to m is drawn for each query, all equally often, and the comparison with that number
is tested, if there is one: each comparison is as likely as any other, and a query with many counts
for more. (All equally often: of independent Bernoulli trials with different chances as many
succeed as of a binomial with their mean, or the number varies less, Hoeffding 1956.)
A place without a hit is no comparison, and a query without a hit is in no FPIR. (Bounds of the mean
over classes that use all queries were compared by simulation: Hoeffding & Bentkus accept a quarter
to four fifths as much, betting about the same.)

What to pass on. Let s_i = max{p_j : j >= i}, which falls along a list, and pass on the hits with
s_i >= t. With R(t) the mean share of the relevant items left out, over n queries that have one, the
largest t with

    (n R(t) + 1) / (n + 1) <= miss

keeps E[share left out] <= miss, on average over held-out sets and new queries: conformal risk
control (Angelopoulos, Bates, Fisch, Lei & Schuster 2024, theorem 1). Items that no hit is are left
out at any t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import ArrayLike, check_name, check_real, check_share
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration._sequences import (
    NEVER,
    STARTS,
    Array,
    Flags,
    Tests,
    about,
    held_out_answers,
    lower_bound,
    queries_needed,
    rejected,
    run_of,
)
from laplace_metric.errors import InputError, NotFittedError


@dataclass(frozen=True, repr=False)
class Threshold(Shown):
    """Accept queries whose probability is at least ``value``.

    Parameters
    ----------
    value : float in [0, 1]
    quantity : "precision" | "recall"
        Share of accepted queries that are right; share of right ones that are accepted.
    target, confidence : float
        The guarantee, and the probability with which it holds.
    estimate, lower : float
        What held-out queries gave, and the lower bound of the test of this threshold. It was
        chosen for the target, so only the target holds with ``confidence``.
    accepted : float
        Share of held-out queries that are accepted.
    n : int
        Held-out queries.
    alpha : float or None
        Queries that are called unknown at this level are not accepted, whatever their probability
        is; None: the probability alone decides.
    cross_fitted : bool
        ``Calibration.cross_fitted``: the confidence is simulated, not proven.
    of : "match" | "label"
        The probability: that the nearest neighbour is a match, or that the label which the index
        answers with is right.
    """

    value: float
    quantity: str
    target: float
    confidence: float
    estimate: float
    lower: float
    accepted: float
    n: int
    alpha: float | None = None
    cross_fitted: bool = False
    of: str = "match"

    def __str__(self) -> str:
        known = "" if self.alpha is None else f" and not unknown at alpha={self.alpha:g}"
        rule = "answer if label probability" if self.of == "label" else "match if probability"
        return (
            f"{rule} >= {self.value:.4f}{known}: {self.quantity} "
            f"{self.estimate:.1%}, at least {100 * self.target:g}% with "
            f"{100 * self.confidence:g}% confidence; accepts {self.accepted:.1%} of {self.n} "
            f"{'cross-fitted' if self.cross_fitted else 'held-out'} queries"
        )

    def _sentence(self) -> str:
        return str(self)

    def _shown_rows(self) -> Rows:
        return in_rows(vars(self).items())


class Comparison(NamedTuple):
    """What a threshold compares: a probability with ``value``, the p-value with ``alpha``.

    Parameters
    ----------
    value : float in [0, 1]
        Smallest probability that is accepted.
    alpha : float or None
        Queries whose p-value is at most this are not accepted; None: the p-value does not count.
    of : "match" | "label"
        The probability: that the nearest neighbour is a match, or that the label is right.
    """

    value: float
    alpha: float | None
    of: str


def comparison_of(
    threshold: Threshold | float, alpha: float | None, of: str = "match"
) -> Comparison:
    """Return what a threshold compares; ``alpha`` and ``of`` are those of a plain number.

    Raises
    ------
    InputError
        Unless it is a ``Threshold``, or a number in [0, 1].

    Examples
    --------
    >>> comparison_of(0.9, 0.05, "label")
    Comparison(value=0.9, alpha=0.05, of='label')
    """
    if isinstance(threshold, Threshold):
        return Comparison(threshold.value, threshold.alpha, threshold.of)
    if not isinstance(threshold, Real) or isinstance(threshold, bool):
        raise InputError(
            f"threshold is a {type(threshold).__name__}: pass a Threshold of "
            "Calibration.threshold_for, or a probability in [0, 1]."
        )
    value = check_real("threshold", threshold, "number in [0, 1]")
    if not 0 <= value <= 1:
        raise InputError(f"threshold={value:g}: pass a probability, a number in [0, 1].")
    return Comparison(value, alpha, check_name("of", of, ("match", "label")))


def accepts(
    threshold: Threshold | float, found: Any, alpha: float | None, of: str = "match"
) -> Any:
    """Return which queries [Q] a threshold accepts: the only place where one is compared.

    A query is accepted if its probability is at least the threshold's value and its p-value is
    above alpha. A ``Threshold`` is compared with the probability that it was chosen for, at the
    alpha that it was tested with.

    Parameters
    ----------
    threshold : Threshold or float
    found : Assessment, SearchResult or Verdict
        Match probabilities [Q, k], label probabilities [Q] and p-values [Q].
    alpha, of
        Those of a threshold that is a number; see ``Comparison``.

    Raises
    ------
    InputError
        As ``comparison_of``.
    NotFittedError
        If there is no such probability.
    """
    value, alpha, of = comparison_of(threshold, alpha, of)
    labelled = of == "label"
    probability = found.label_probability if labelled else found.match_probability
    if probability is None:
        how = " with labels" * labelled
        raise NotFittedError(f"the index was not calibrated{how}: call index.calibrate(...) first.")
    enough = (probability if labelled else probability[:, 0]) >= value
    return enough if alpha is None else enough & (found.p_value > alpha)


def threshold_for(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    precision: float | None = None,
    recall: float | None = None,
    confidence: float = 0.95,
    abstained: ArrayLike | None = None,
    thresholds: ArrayLike | None = None,
) -> Threshold:
    """The lowest threshold that keeps ``precision``, or the highest that keeps ``recall``.

    Parameters
    ----------
    probability : [n]
        In [0, 1], of the nearest neighbour of each held-out query.
    correct : [n]
        Whether it is a match: booleans, or 0 and 1.
    precision, recall : float in (0, 1)
        What to guarantee; one of the two.
    confidence : float in (0, 1)
    abstained : [n], optional
        Which held-out queries are not answered, whatever the threshold. ``Threshold.alpha`` does
        not know why; ``Calibration.threshold_for`` sets it.
    thresholds : [m], optional
        Probabilities of other queries, such as those that fitted the probability, among which a
        threshold for a precision is chosen: the guarantee is then exact. None: those of the tested
        queries, each test without one query.

    Raises
    ------
    InputError
        Unless one target in (0, 1) is given, and as many hits as probabilities in [0, 1]; if no
        threshold keeps it, with the best that one does.

    Examples
    --------
    >>> p = np.linspace(0, 1, 1000)
    >>> print(threshold_for(p, p > 0.5, recall=0.9))
    match if probability >= 0.5385: recall 92.4%, at least 90% with 95% confidence; accepts \
46.2% of 1000 held-out queries
    """
    if (precision is None) == (recall is None):
        raise InputError("pass either precision= or recall=.")
    quantity, target = ("precision", precision) if recall is None else ("recall", recall)
    assert target is not None
    guaranteed, confidence = check_share(quantity, target), check_share("confidence", confidence)
    p, right = held_out_answers(probability, correct, abstained)
    if recall is None:
        value, bound = _for_precision(p, right, guaranteed, 1 - confidence, thresholds)
        estimate = float(right[p >= value].mean())
    else:
        value, bound = _for_recall(p, right, guaranteed, 1 - confidence)
        estimate = float((p[right] >= value).mean())
    share = float((p >= value).mean())
    return Threshold(value, quantity, guaranteed, confidence, estimate, bound, share, len(p))


def largest_guarantee(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    confidence: float = 0.95,
    abstained: ArrayLike | None = None,
    thresholds: ArrayLike | None = None,
) -> Threshold:
    """The largest precision, in whole per cent, that held-out queries can guarantee.

    It is chosen by the data, and holds with ``confidence`` all the same: the bounds of which it is
    the largest hold all at once. Of the thresholds with such a bound, the lowest.

    Parameters
    ----------
    probability, correct, abstained : [n]
        As for ``threshold_for``.
    confidence : float in (0, 1)
    thresholds : [m], optional
        As for ``threshold_for``.

    Raises
    ------
    InputError
        As ``threshold_for``; and if not even 1 % can be guaranteed.

    Examples
    --------
    >>> p = np.linspace(0, 1, 100)
    >>> print(largest_guarantee(p, p > 0.5))
    match if probability >= 0.5051: precision 100.0%, at least 89% with 95% confidence; accepts \
50.0% of 100 held-out queries
    """
    p, right = held_out_answers(probability, correct, abstained)
    level = (1 - check_share("confidence", confidence)) / STARTS
    tests = Tests.of(p, right, thresholds)
    bounds = np.array([tests.bound(start, level) for start in tests.starts])
    target = float(np.floor(100 * bounds.max(initial=0)) / 100)
    if target <= 0:
        raise InputError(
            f"no precision can be guaranteed: of {len(p)} queries "
            f"{int(right[p > NEVER].sum())} are answered right. Calibrate on more queries."
        )
    chosen = int(np.flatnonzero(bounds >= target)[-1])
    value = float(tests.values[tests.starts[chosen]])
    accepted = p >= value
    return Threshold(
        value,
        "precision",
        target,
        confidence,
        estimate=float(right[accepted].mean()),
        lower=float(bounds[chosen]),
        accepted=float(accepted.mean()),
        n=len(p),
    )


Chosen = tuple[float, float]
"""Threshold, and the lower bound of its test."""


def _for_precision(
    p: Array, right: Flags, target: float, delta: float, thresholds: ArrayLike | None
) -> Chosen:
    tests, level = Tests.of(p, right, thresholds), delta / STARTS
    last = tests.lowest(target, level)
    if last is None:
        advice = _more_queries(p, right, target, 1 - delta, thresholds)
        at = max(tests.starts, key=lambda start: tests.bound(start, level), default=None)
        if at is None:
            raise InputError(_unreachable("precision", target, 0.0, 0, 0) + advice)
        bound, n_right = tests.bound(at, level), int(tests.right[at])
        unreachable = _unreachable("precision", target, bound, n_right, int(tests.accepted[at]))
        raise InputError(unreachable + advice)
    return float(tests.values[last]), tests.bound(last, level)


def _for_recall(p: Array, right: Flags, target: float, delta: float) -> Chosen:
    of_matches = np.sort(p[right])
    values, first = np.unique(of_matches, return_index=True)
    values, first = values[values > NEVER], first[values > NEVER]
    good, total = len(of_matches) - first, np.full(len(first), len(of_matches))
    steps = run_of(rejected(good, total, target, delta))
    if steps == 0:
        abstained = int((of_matches == NEVER).sum())
        least = int(np.ceil(np.log(delta) / np.log(target)))
        why = f" {abstained} of the right ones are abstained from." if abstained else ""
        advice = f" Ask for less, or calibrate on more queries ({least} right ones are the least)."
        if abstained >= (1 - target) * len(of_matches):
            advice = " Ask for less, or abstain from fewer: with a smaller alpha, or alpha=None."
        most, of = int(good[:1].sum()), int(total[:1].sum())  # 0 where there is no match at all
        unreachable = _unreachable("recall", target, lower_bound(most, of, delta), most, of)
        raise InputError(unreachable + why + advice)
    return float(values[steps - 1]), lower_bound(int(good[steps - 1]), len(of_matches), delta)


def _unreachable(name: str, target: float, bound: float, right: int, of: int) -> str:
    """With the best bound where a sequence starts: no larger target is reached."""
    what = f"of the {of} surest, {right} are right"
    if name == "recall":
        what = f"of {of} right ones, {right} are accepted at all"
    most = math.floor(1000 * bound) / 1000
    return (
        f"{name}={target:g} cannot be guaranteed: these queries support {most:g} at most ({what})."
    )


def _more_queries(
    p: Array, right: Flags, target: float, confidence: float, thresholds: ArrayLike | None
) -> str:
    abstained = p == NEVER
    missing = queries_needed(
        np.where(abstained, 0, p),
        right,
        precision=target,
        confidence=confidence,
        abstained=abstained,
        thresholds=thresholds,
    )
    if missing.more and thresholds is None:
        return f" Ask for less, or calibrate on about {about(missing.more)} more queries."
    if missing.more:
        return (
            f" Ask for less, or calibrate on about {about(2 * missing.more)} more queries: half of "
            "them test it, with cross_fit=5 all do."
        )
    if missing.right < target * missing.surest:
        return " Ask for less: of more queries like these, not enough would be right."
    return (
        " Ask for less: how many more queries it takes cannot be told from these; the least are "
        f"{missing.flawless:,} accepted ones that are all right."
    )


# Rates of accepted hits and their guarantees, as functions of held-out arrays.

Judged = npt.NDArray[np.int8]


def threshold_of_false(false: Array, target: float, delta: float) -> tuple[float, float] | None:
    """Return the least threshold that keeps the rate of ``false`` [n], and the rate's upper bound.

    None where n is below ``fewest_false``.

    Examples
    --------
    >>> value, bound = threshold_of_false(np.arange(300) / 300, 0.01, 0.05)
    >>> round(value, 4), round(bound, 4)
    (0.9967, 0.0099)
    """
    from scipy.special import bdtr, betaincinv

    n = len(false)
    r = int((bdtr(np.arange(n), n, target) <= delta).sum())
    if r == 0:
        return None
    value = float(np.nextafter(np.sort(false)[n - r], 2.0))
    return value, float(betaincinv(r, n - r + 1, 1 - delta))


def fewest_false(target: float, delta: float) -> int:
    """Queries without a match, or comparisons, that a rate of at most ``target`` takes.

    Examples
    --------
    >>> fewest_false(0.01, 0.05), fewest_false(0.001, 0.05)
    (299, 2995)
    """
    return math.ceil(math.log(delta) / math.log1p(-target))


def highest_behind(p: Array) -> Array:
    """s [Q, k]: the highest probability of each hit and those behind it."""
    return np.asarray(np.maximum.accumulate(p[:, ::-1], 1)[:, ::-1])


def threshold_of_miss(p: Array, relevant: Judged, total: Array, miss: float) -> float:
    """The largest t by which the expected share of relevant items left out is at most ``miss``.

    Parameters
    ----------
    p, relevant : [n, k]
        Probabilities, and 1 where a hit is relevant.
    total : [n]
        Relevant items of each query; those with 0 are left out.

    Raises
    ------
    InputError
        If no t keeps it.

    Examples
    --------
    >>> p = np.linspace(1, 0, 100)[:, None]
    >>> round(threshold_of_miss(p, np.ones((100, 1), np.int8), np.ones(100), 0.1), 4)
    0.0909
    """
    known = total > 0
    n, of = int(known.sum()), total[known]
    found = relevant[known] == 1
    lost_anyway = 1 - found.sum(1) / of
    budget = miss * (n + 1) - 1 - float(lost_anyway.sum()) + 1e-9
    if budget < 0:
        beyond = float(lost_anyway.mean()) if n else 0.0
        raise InputError(
            f"miss={miss:g} cannot be guaranteed: it takes at least {math.ceil(1 / miss) - 1:,} "
            f"queries with a relevant item in the tested half, which has {n:,}, and {beyond:.1%} "
            f"of the relevant items are not among the {p.shape[1]} hits. Search for more hits, "
            "calibrate on more queries, or ask for less."
        )
    s = highest_behind(p[known])[found]
    weight = np.broadcast_to(1 / of[:, None], found.shape)[found]
    order = np.argsort(s)
    lost = int(np.searchsorted(np.cumsum(weight[order]), budget, side="right"))
    return float(s[order][lost]) if lost < len(s) else math.inf  # of ties, none is lost


def error_rates(value: float, p: Array, relevant: Judged, mated: Judged) -> dict[str, float]:
    """Return the rates of accepting p >= value; a rate of no query or hit is left out.

    Parameters
    ----------
    value : float
    p : [n, k]
        Probabilities.
    relevant : [n, k]
        1, 0, -1 where a hit was not judged, and ``NO_HIT``: these are not accepted, and no
        comparisons.
    mated : [n]
        1, 0, or -1 where it is not known.
    """
    accepted = (p >= value) & (relevant != NO_HIT)
    first, right, judged = accepted[:, 0], relevant[:, 0] == 1, relevant[:, 0] >= 0
    parts = {
        "coverage": first,
        "precision": right[first & judged],
        "false_match_rate": accepted[relevant == 0],
        "false_non_match_rate": ~accepted[relevant == 1],
        "false_positive_identification_rate": first[(mated == 0) & (relevant[:, 0] != NO_HIT)],
        "false_negative_identification_rate": ~(first & right)[mated == 1],
    }
    return {name: float(flags.mean()) for name, flags in parts.items() if len(flags)}


def precision_of_mixture(
    share: Array, value: float, p: Array, relevant: Judged, mated: Judged, delta: float
) -> tuple[Array, Array]:
    """Precision, and its lower bound, where ``share`` of the queries has no match.

    With a the share of the mated queries whose first hit p [n] is accepted and right, w accepted
    and wrong, and f the FPIR, of queries that have a hit,

        ((1 - s) a) / ((1 - s) (a + w) + s f)

    The bound has those of a, w and f, each at delta / 3 (Clopper & Pearson 1934).

    Raises
    ------
    InputError
        Without queries of both kinds.
    """
    first, right = p >= value, relevant == 1
    known, other = (mated == 1) & (relevant >= 0), (mated == 0) & (relevant != NO_HIT)
    n, m = int(known.sum()), int(other.sum())
    if not n or not m:
        raise InputError(f"{n} held-out queries have a match and {m} have none: calibrate on both.")
    a, w = int((first & right)[known].sum()), int((first & ~right)[known].sum())
    f = int(first[other].sum())

    def mixed(a: float, w: float, f: float) -> Array:
        answered = (1 - share) * (a + w) + share * f
        return np.asarray((1 - share) * a / np.where(answered > 0, answered, 1.0))

    third = delta / 3
    least = lower_bound(a, n, third)
    most_wrong, most_false = 1 - lower_bound(n - w, n, third), 1 - lower_bound(m - f, m, third)
    return mixed(a / n, w / n, f / m), mixed(least, most_wrong, most_false)
