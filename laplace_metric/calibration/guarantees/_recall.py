"""The highest threshold that keeps a recall.

Of n right hits s are accepted; the highest threshold at which

    P(Bin(n, target) >= s) <= delta

Acceptance only falls with the threshold: one sequence. Of n right hits, the share of all that lies
above the i-th smallest is Beta(n - i + 1, i) (Wilks 1941), or more with ties: the test is exact
though its thresholds are tested hits. Hits that are abstained from are accepted by no threshold: a
recall is one of all. Cross-fitted, the test has no room for the step from the tested fits to the
one that answers, and is made at delta / 2.
"""

from __future__ import annotations

from typing import final

import numpy as np

from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._precision import unreachable
from laplace_metric.calibration.guarantees._test_sequences import (
    NEVER,
    binomial_p_values,
    lower_bound,
    run_of,
)
from laplace_metric.calibration.guarantees._theory import Chosen, Guarantee, Theory
from laplace_metric.errors import InputError


@final
class OrderStatistics(Theory):
    """Order statistics of the right answers of independent queries, for a recall."""

    def threshold(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the highest threshold that keeps it."""
        assert asked.target is not None
        p, right = queries.answers()
        # from the tested fits to the one that answers no theorem leads
        delta = asked.delta / 2 if queries.cross_fitted else asked.delta
        value, bound = highest_threshold(p, right, asked.target, delta)
        return Chosen(value, asked.target, bound, float((p[right] >= value).mean()), len(p))

    def theorem(self, queries: CalibrationQueries, asked: Guarantee) -> str | None:
        """Return its name; None of cross-fitted queries."""
        return None if queries.cross_fitted else "order statistics"


def highest_threshold(p: Array, right: Flags, target: float, delta: float) -> tuple[float, float]:
    """Return the highest threshold that keeps a recall, and the lower bound of its test.

    Parameters
    ----------
    p, right : [n]
        Probability of each answer, ``NEVER`` where nothing is answered, and whether it is right.
    target, delta : float in (0, 1)
        Recall, and probability that the guarantee does not hold.

    Raises
    ------
    InputError
        If no threshold keeps it, with the best that one does.
    """
    of_matches = np.sort(p[right])
    values, first = np.unique(of_matches, return_index=True)
    values, first = values[values > NEVER], first[values > NEVER]
    good, total = len(of_matches) - first, np.full(len(first), len(of_matches))
    steps = run_of(binomial_p_values(good, total, target) <= delta)
    if steps == 0:
        abstained = int((of_matches == NEVER).sum())
        least = int(np.ceil(np.log(delta) / np.log(target)))
        why = f" {abstained} of the right ones are abstained from." if abstained else ""
        advice = f" Ask for less, or calibrate on more queries ({least} right ones are the least)."
        if abstained and abstained >= (1 - target) * len(of_matches):
            advice = " Ask for less, or abstain from fewer: with a smaller alpha, or alpha=None."
        most, of = int(good[:1].sum()), int(total[:1].sum())  # 0 where there is no match at all
        said = unreachable("recall", target, lower_bound(most, of, delta), most, of)
        raise InputError(said + why + advice)
    return float(values[steps - 1]), lower_bound(int(good[steps - 1]), len(of_matches), delta)
