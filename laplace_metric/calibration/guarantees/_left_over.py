"""Queries that the answers of a finer level leave to a coarser one, and the level of its test.

Answers of level l are tested among the queries that the finer levels leave, since a precision over
all queries bounds none of those: what is left is harder. A finer threshold is chosen by the same
queries, so that what it leaves is no fixed set. It is a stopped one.

**Theorem.** Let n queries be independent and alike, and let the fixed sequences of
``_test_sequences`` accept the answers of level 0 down to a threshold, in sequences that begin at
starts fixed by other queries. Reveal the queries in the order of their probability p, the highest
first. The r-th sequence that rejects anything ends at a value v_r of p, the first that it does not
reject: a stopping time, so that given what is revealed, the others are independent and distributed
as a query with p < v_r (p <= v_r, if values have no mass). Among them the thresholds of level 1 are
tested as those of level 0 were, at the level delta_1 w_r, which is exact for each r. The sequence
that reaches the lowest threshold is one of these, r*, or none is (r* = 0, and all are left), so

    P(level 1 is accepted with a precision below the target) <= sum_r delta_1 w_r = delta_1

for weights that sum to 1, whichever r* the data choose. Threshold 0 is then set just above v_r*,
where its own test holds too (the p-value is constant between hits). Level 2 is tested among what
level 1 leaves, at delta_2 w_r w_r', and so on. With delta_l = delta / L, all levels keep the
precision at once with probability 1 - delta by the union bound, and so does their mixture.

The queries at v_r are revealed, and mostly wrong, since the sequence ended there. Those that are
wrong at the finer level count as wrong at the coarser one. This keeps the theorem where p has mass
at v_r, too: given that so few were right, these are right less often than others (Harris 1960), and
a wrong one can only raise a p-value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from laplace_metric.calibration._array_namespace import Flags
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._precision import FixedSequences
from laplace_metric.calibration.guarantees._test_sequences import (
    FEW_SHARES,
    NEVER,
    SHARES,
    Tests,
)
from laplace_metric.calibration.guarantees._theories import precision_theory
from laplace_metric.calibration.guarantees._theory import Chosen, Guarantee


class LeftOver(NamedTuple):
    """Queries that a threshold leaves.

    Parameters
    ----------
    value : float in [0, 1]
        The threshold, just above the next probability.
    left : [n]
        True for each query that is not answered.
    spent : [n]
        True for those at which the sequence ended, and that are wrong.
    run : int
        Number of the sequence that chose the threshold; 0 if none did.
    """

    value: float
    left: Flags
    spent: Flags
    run: int


def share_of_run(run: int) -> float:
    """Return the share of the next level's error that is spent after a sequence, from 0 on.

    Examples
    --------
    >>> [share_of_run(run) for run in range(5)], sum(share_of_run(run) for run in range(60))
    ([0.375, 0.375, 0.125, 0.0625, 0.03125], 1.0)
    """
    return 0.375 if run <= 1 else 0.5 ** (run + 1)


def chosen_of_level(queries: CalibrationQueries, asked: Guarantee, level: int) -> Chosen:
    """Return the threshold of a level by the queries that are left for it.

    Of few queries, few sequences are tested: those that finer levels leave begin at fewer starts.

    Parameters
    ----------
    queries : CalibrationQueries
        Queries that finer levels leave.
    asked : Guarantee
        Precision, and the confidence of this test.
    level : int
        Level, from 0 on.

    Raises
    ------
    InputError
        If no threshold keeps it, with what would do.
    """
    if level and not queries.n_groups:
        return FixedSequences(FEW_SHARES).threshold(queries, asked)
    return precision_theory(queries, asked).threshold(queries, asked)


def left_over(
    queries: CalibrationQueries, asked: Guarantee, value: float, level: int = 0
) -> LeftOver:
    """Return what a threshold leaves that a theory has chosen for a precision.

    Parameters
    ----------
    queries : CalibrationQueries
        Queries that tested it.
    asked : Guarantee
        Precision, and the confidence of its test.
    value : float in [0, 1]
        Smallest probability of an answer, as the theory has chosen it.
    level : int
        Level of the answers. Default: 0, labels.
    """
    p, right, run = queries.decided[:, 0], queries.relevant[:, 0] == 1, 1
    if not queries.n_groups:
        assert asked.target is not None
        shares = FEW_SHARES if level else SHARES
        tests = Tests.of(p, right, queries.thresholds, shares)
        found = tests.lowest(asked.target, asked.delta)
        run = 0 if found is None else found.run
    below = p[(p < value) & (p > NEVER)]
    if not len(below):
        return LeftOver(value, p < value, np.zeros(len(p), bool), run)
    at = float(below.max())
    return LeftOver(float(np.nextafter(at, np.inf)), p < value, (p == at) & ~right, run)
