"""The lowest threshold that keeps a precision, and the largest precision that can be kept.

A guarantee is a hypothesis test on held-out queries (Angelopoulos et al. 2025, Learn then Test,
Annals of Applied Statistics 19): a threshold is accepted if "its precision is at most the target"
is rejected, in the sequences of ``_test_sequences``, where their proof is. With halves, the
thresholds where these begin come from the queries that fitted the probability; of one score, for
which nothing has to be fitted, from the tested queries themselves.

Of the ten sequences' first tests, (s_j of n_j accepted hits), every precision is at least its bound
b_j, P(Bin(n_j, b_j) >= s_j) = delta / J, with probability 1 - delta. The largest guarantee is the
largest b_j, rounded down to a hundredth.

Hits that are abstained from whatever their probability is, such as those of unknown queries, are
accepted by no threshold: a precision is one of the others. A calibration judges each held-out query
by all other known ones, as it does those to come; that they judge each other is beyond the theorem,
which wants a rule made without them, and is held by simulation.

A cross-fitted calibration tests each hit by a fit to other queries, and answers with the fit to
all. No theorem covers the step from one to the other: simulated (``benchmarks/retrieval``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
import numpy.typing as npt

from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.guarantees._betting import fewest_groups
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import (
    level_at_fraction,
    rows_at_fraction,
)
from laplace_metric.calibration.guarantees._queries_needed import (
    QueriesNeeded,
    queries_needed,
)
from laplace_metric.calibration.guarantees._test_sequences import NEVER, SHARES, STARTS, Tests
from laplace_metric.calibration.guarantees._theory import (
    Chosen,
    Guarantee,
    PrecisionTheory,
    check_held_out,
    is_estimated,
)
from laplace_metric.errors import InputError

MONOTONE = "a better score is never less often right"
"""Condition under which a threshold may begin at a tested hit (``_test_sequences``)."""


@final
@dataclass(frozen=True)
class FixedSequences(PrecisionTheory):
    """Exact tests of a precision of independent queries, in fixed sequences of thresholds.

    Parameters
    ----------
    shares : sequence of fractions
        Shares of the hits that the starts accept, from the smallest on; of ``threshold`` alone.
        Default: those of a guarantee of all queries.
    """

    shares: Sequence[Fraction] = SHARES

    def threshold(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the lowest threshold that keeps it."""
        assert asked.target is not None
        rows, delta = _judged(queries), asked.delta
        if asked.open_set_fraction is not None:
            check_held_out(queries, "open_set_fraction")
            share, delta = level_at_fraction(asked.open_set_fraction, delta)
            first = queries.relevant[:, 0]
            # a share that is stated is one of all queries, an estimate one of those with a hit
            counted = first >= 0 if is_estimated(asked) else first != -1
            rows = rows_at_fraction(np.where(counted, queries.mated, -1), share)
        (p, right), order = queries.first_hits(rows), _ordered(queries, rows)
        starts = queries.thresholds
        value, bound = lowest_threshold(order, right, asked.target, delta, starts, self.shares)
        value = _as_probability(queries, value, order, p)
        return Chosen(value, asked.target, bound, float(right[p >= value].mean()), len(p))

    def theorem(self, queries: CalibrationQueries, asked: Guarantee) -> str | None:
        """Return its name.

        A step from tested fits to another one, an estimate, and queries whose items were hidden
        have none.
        """
        if queries.cross_fitted or queries.simulated or is_estimated(asked):
            return None
        if queries.thresholds is None:
            return f"a fixed sequence of exact tests, if {MONOTONE}"
        return "fixed sequences of exact tests"

    def largest(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the threshold of the largest precision, in whole per cent, that can be kept."""
        rows = _judged(queries)
        (p, right), order = queries.first_hits(rows), _ordered(queries, rows)
        found = largest_precision(order, right, asked.delta, queries.thresholds)
        target, value, bound = found
        value = _as_probability(queries, value, order, p)
        return Chosen(value, target, bound, float(right[p >= value].mean()), len(p))

    def missing(
        self, queries: CalibrationQueries, asked: Guarantee, chance: float
    ) -> QueriesNeeded:
        """Estimate what is missing; where half of the queries test, it takes twice as many."""
        assert asked.target is not None
        rows = _judged(queries)
        found = queries_needed(
            _ordered(queries, rows),
            queries.first_hits(rows)[1],
            asked.target,
            asked.delta,
            chance=chance,
            thresholds=queries.thresholds,
        )
        return found if queries.thresholds is None else found.times(2)

    def fewest(self, queries: CalibrationQueries, asked: Guarantee) -> int:
        """Return the number of queries that it takes if all are right."""
        assert asked.target is not None
        return fewest_groups(asked.target, asked.delta) + (queries.thresholds is None)


def _judged(queries: CalibrationQueries) -> npt.NDArray[np.intp]:
    """Return the rows of the queries whose first hit was judged, or that have none."""
    return np.flatnonzero(queries.relevant[:, 0] != -1)


def _ordered(queries: CalibrationQueries, rows: npt.NDArray[np.intp]) -> Array:
    """Return the key by which first hits are sorted: probability, or rank of the score.

    Of a score it is the rank, which is above ``NEVER``.
    """
    p = queries.first_hits(rows)[0]
    if not queries.one_score:
        return p
    ranks = np.unique(queries.score, return_inverse=True)[1].astype(np.float64)
    return np.where(p == NEVER, NEVER, ranks[rows])


def _as_probability(queries: CalibrationQueries, value: float, order: Array, p: Array) -> float:
    """Return the probability from which on hits are at least at ``value`` in ``order``.

    Where the probability is constant it may accept less: all thresholds above are kept, too.

    Raises
    ------
    InputError
        If the probability is constant where the score is not.
    """
    if not queries.one_score:
        return value
    accepted, most_below = p[order >= value], p[order < value].max(initial=NEVER)
    if most_below > NEVER:
        accepted = accepted[accepted > most_below]
    if not len(accepted):
        raise InputError("scores: better ones are not more often relevant, so none decides.")
    return float(accepted.min())


def lowest_threshold(
    p: Array,
    right: Flags,
    target: float,
    delta: float,
    thresholds: Array | None,
    shares: Sequence[Fraction] = SHARES,
) -> tuple[float, float]:
    """Return the lowest threshold that keeps a precision, and the lower bound of its test.

    Parameters
    ----------
    p, right : [n]
        Probability of each answer, ``NEVER`` where nothing is answered, and whether it is right.
    target, delta : float in (0, 1)
        Precision, and probability that the guarantee does not hold.
    thresholds : [m] or None
        Probabilities of other queries, among which the threshold is chosen; None: p.
    shares : sequence of fractions
        Shares of the hits that the starts accept. Default: ``SHARES``.

    Raises
    ------
    InputError
        If no threshold keeps it, with the best that one does.
    """
    tests = Tests.of(p, right, thresholds, shares)
    last = tests.lowest(target, delta)
    if last is not None:
        return float(tests.values[last.at]), tests.bound(last.at, last.level, last.spent)
    advice = _more_queries(p, right, target, delta, thresholds)
    level = delta / len(shares)
    at = max(tests.starts, key=lambda start: tests.bound(start, level), default=None)
    if at is None:
        raise InputError(unreachable("precision", target, 0.0, 0, 0) + advice)
    bound, n_right = tests.bound(at, level), int(tests.right[at])
    said = unreachable("precision", target, bound, n_right, int(tests.accepted[at]))
    raise InputError(said + advice)


def largest_precision(
    p: Array, right: Flags, delta: float, thresholds: Array | None
) -> tuple[float, float, float]:
    """Return the largest precision, in whole per cent; the lowest threshold with it; its bound.

    It is chosen by the data, and holds all the same: the bounds of which it is the largest hold all
    at once.

    Raises
    ------
    InputError
        If not even 1 % can be guaranteed.
    """
    level, tests = delta / STARTS, Tests.of(p, right, thresholds)
    bounds = np.array([tests.bound(start, level) for start in tests.starts])
    target = float(np.floor(100 * bounds.max(initial=0)) / 100)
    if target <= 0:
        raise InputError(
            f"no precision can be guaranteed: of {len(p)} queries "
            f"{int(right[p > NEVER].sum())} are answered right. Calibrate on more queries."
        )
    chosen = int(np.flatnonzero(bounds >= target)[-1])
    return target, float(tests.values[tests.starts[chosen]]), float(bounds[chosen])


def unreachable(name: str, target: float, bound: float, right: int, of: int) -> str:
    """Return the error, with the best of the bounds that hold all at once."""
    what = f"of the {of} surest, {right} are right"
    if name == "recall":
        what = f"of {of} right ones, {right} are accepted at all"
    most = math.floor(1000 * bound) / 1000
    return f"{name}={target:g} cannot be guaranteed: these queries support {most:g} ({what})."


def _more_queries(
    p: Array, right: Flags, target: float, delta: float, thresholds: Array | None
) -> str:
    missing = queries_needed(p, right, target, delta, thresholds=thresholds)
    if thresholds is None and (told := missing.told("queries")):
        return f" Ask for less, or calibrate on {told}."
    if told := missing.times(2).told("queries"):
        return (
            f" Ask for less, or calibrate on {told}: half of them test it, with cross_fit=5 all do."
        )
    return f" Ask for less: {missing.reason}."
