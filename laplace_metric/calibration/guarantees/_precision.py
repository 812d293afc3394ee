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

import numpy as np

from laplace_metric.calibration._arrays import Array, Flags
from laplace_metric.calibration.guarantees._queries_needed import about, queries_needed
from laplace_metric.calibration.guarantees._test_sequences import NEVER, STARTS, Tests
from laplace_metric.errors import InputError


def lowest_threshold(
    p: Array, right: Flags, target: float, delta: float, thresholds: Array | None
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

    Raises
    ------
    InputError
        If no threshold keeps it, with the best that one does.
    """
    tests = Tests.of(p, right, thresholds)
    last = tests.lowest(target, delta)
    if last is not None:
        return float(tests.values[last.at]), tests.bound(*last)
    advice = _more_queries(p, right, target, delta, thresholds)
    level = delta / STARTS
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
    if missing.more and thresholds is None:
        return f" Ask for less, or calibrate on about {about(missing.more)} more queries."
    if missing.more:
        return (
            f" Ask for less, or calibrate on about {about(2 * missing.more)} more queries: half of "
            "them test it, with cross_fit=5 all do."
        )
    return f" Ask for less: {missing.reason}."
