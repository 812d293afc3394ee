"""Rates of accepted hits and their guarantees, as functions of held-out arrays.

FPIR  false positive identification rate, 1:N: share of the queries without a match in the
      collection whose first hit is accepted (ISO/IEC 19795-1); FNIR: share of the queries with one
      whose first hit is wrong, or not accepted
FMR   false match rate, 1:1: share of the comparisons that are no match and are accepted; FNMR:
      share of those that are one and are not

Of n probabilities that should be rejected, p_(1) >= p_(2) >= ..., accept what is above p_(r). The
rate is then Beta(r, n - r + 1) distributed, or smaller with ties (Wilks 1941), so that

    P(rate > target) = P(Bin(n, target) <= r - 1)

of which r is the largest that is at most delta: exact, though the threshold is a tested hit. It
takes independent draws: one comparison a query; and of new classes one query each, for queries of
a class resemble each other. (Bounds of the mean over classes that use all queries were compared by
simulation: Hoeffding & Bentkus accept a quarter to four fifths as much, betting about the same.)

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

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._sequences import lower_bound
from laplace_metric.errors import InputError

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
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
    """Rates of accepting p >= value [n, k]; -1 is not judged, a rate of no hit is left out."""
    accepted = p >= value
    first, right, judged = accepted[:, 0], relevant[:, 0] == 1, relevant[:, 0] >= 0
    parts = {
        "coverage": first,
        "precision": right[first & judged],
        "false_match_rate": accepted[relevant == 0],
        "false_non_match_rate": ~accepted[relevant == 1],
        "false_positive_identification_rate": first[mated == 0],
        "false_negative_identification_rate": ~(first & right)[mated == 1],
    }
    return {name: float(flags.mean()) for name, flags in parts.items() if len(flags)}


def precision_of_mixture(
    share: Array, value: float, p: Array, relevant: Judged, mated: Judged, delta: float
) -> tuple[Array, Array]:
    """Precision, and its lower bound, where ``share`` of the queries has no match.

    With a the share of the mated queries whose first hit p [n] is accepted and right, w accepted
    and wrong, and f the FPIR,

        ((1 - s) a) / ((1 - s) (a + w) + s f)

    The bound has those of a, w and f, each at delta / 3 (Clopper & Pearson 1934).

    Raises
    ------
    InputError
        Without queries of both kinds.
    """
    first, right = p >= value, relevant == 1
    known, other = (mated == 1) & (relevant >= 0), mated == 0
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
