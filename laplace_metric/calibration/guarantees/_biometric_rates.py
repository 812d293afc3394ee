"""Rates of accepted hits in identification (1:N) and verification (1:1), and their guarantees.

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
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from laplace_metric.calibration._array_namespace import Array, Judged
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._theory import (
    Chosen,
    Guarantee,
    Theory,
    check_held_out,
)
from laplace_metric.errors import InputError


@final
class FalseRates(Theory):
    """Order statistics of what should be rejected, for a false match or identification rate."""

    def threshold(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the lowest threshold that keeps it."""
        assert asked.quantity is not None
        assert asked.target is not None
        of_classes = asked.quantity == "fpir" and len(queries.unseen) > 0
        if of_classes:
            false = one_query_a_class(queries.unseen, queries.unseen_class)
            of = len(false)
        else:
            check_held_out(queries, asked.quantity)
            if asked.quantity == "fmr":
                false, of = one_comparison_a_query(queries.decided, queries.relevant)
            else:
                has_hit = queries.relevant[:, 0] != NO_HIT
                false = queries.decided[(queries.mated == 0) & has_hit, 0]
                of = len(false)
        kept = threshold_of_false(false, asked.target, asked.delta)
        if kept is None:
            least = fewest_false(asked.target, asked.delta)
            what = "comparisons that are no match, one a query"
            where, advice = "in the tested half, which has", "Calibrate on more, or ask for less."
            if queries.thresholds is None:  # all of them test
                where = "and there are"
            if of_classes:
                what, where, advice = "new classes", "and there are", "Ask for less."
            elif asked.quantity == "fpir":
                what = "queries without a match in the collection (mated=0)"
            drawn = f", worth {len(false):,} as the lists differ in length" if of >= least else ""
            raise InputError(
                f"{asked.quantity}={asked.target:g} cannot be guaranteed: it takes {least:,} "
                f"{what}, {where} {of:,}{drawn}. {advice}"
            )
        value = max(kept[0], 0.0)  # below all probabilities, where nothing is answered anyway
        return Chosen(value, asked.target, kept[1], queries.rates(value)[asked.quantity], of)

    def theorem(self, queries: CalibrationQueries, asked: Guarantee) -> str | None:
        """Return its name; None of cross-fitted queries, and of those whose items were hidden."""
        return None if queries.cross_fitted or queries.simulated else "order statistics"


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
    """Return the number of open-set queries, or comparisons, that a rate of ``target`` needs.

    Examples
    --------
    >>> fewest_false(0.01, 0.05), fewest_false(0.001, 0.05)
    (299, 2995)
    """
    return math.ceil(math.log(delta) / math.log1p(-target))


def one_comparison_a_query(p: Array, relevant: Judged) -> tuple[Array, int]:
    """Return probabilities of comparisons that are no match, one a query, and of how many queries.

    Parameters
    ----------
    p, relevant : [n, k]
        Probability and relevance of each hit.
    """
    wrong = relevant == 0
    n, count = len(wrong), wrong.sum(1)
    # every place is drawn equally often: the draw is the same one each time, and independent
    # draws would have a place too rarely in all calibrations with as many queries
    place = (np.random.default_rng(0).permutation(n) * count.max(initial=0)) // n
    drawn = wrong & (wrong.cumsum(1) == place[:, None] + 1)  # none where place >= count
    return p[drawn], int((count > 0).sum())


def one_query_a_class(p: Array, classes: Array) -> Array:
    """Return the probability of one query of each class, of all queries p [m] of ``classes``."""
    order = np.random.default_rng(0).permutation(len(p))
    return p[order][np.unique(classes[order], return_index=True)[1]]
