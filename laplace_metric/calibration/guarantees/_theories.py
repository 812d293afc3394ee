"""The theory of each rate, and what it says of queries."""

from __future__ import annotations

from laplace_metric._utils.validation import check_share
from laplace_metric.calibration.guarantees._biometric_rates import FalseRates
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._group_totals import GroupTotals
from laplace_metric.calibration.guarantees._precision import FixedSequences
from laplace_metric.calibration.guarantees._queries_needed import CHANCE, QueriesNeeded
from laplace_metric.calibration.guarantees._recall import OrderStatistics
from laplace_metric.calibration.guarantees._theory import (
    HITS,
    Guarantee,
    PrecisionTheory,
    Theory,
)

OF_RATES: dict[str | None, Theory] = {
    "precision": FixedSequences(),
    "recall": OrderStatistics(),
    "fmr": FalseRates(),
    "fpir": FalseRates(),
}
OF_GROUPS = GroupTotals()


def theory_of(queries: CalibrationQueries, asked: Guarantee) -> Theory:
    """Return the theory that tests a rate by these queries."""
    if queries.n_groups or asked.of == HITS:
        return OF_GROUPS
    return OF_RATES[asked.quantity]


def precision_theory(queries: CalibrationQueries, asked: Guarantee) -> PrecisionTheory:
    """Return the theory that tests a precision by these queries."""
    theory = theory_of(queries, asked)
    assert isinstance(theory, PrecisionTheory)
    return theory


def missing_queries(
    queries: CalibrationQueries, asked: Guarantee, chance: float = CHANCE
) -> QueriesNeeded:
    """Estimate how many more queries to calibrate with it takes to guarantee a precision.

    Parameters
    ----------
    queries : CalibrationQueries
        Queries that there are.
    asked : Guarantee
        Precision to be guaranteed.
    chance : float in (0, 1)
        Probability that it can be guaranteed then, if new queries are answered as these are.
        Default: 0.8.

    Raises
    ------
    InputError
        For a chance outside (0, 1).
    """
    return precision_theory(queries, asked).missing(queries, asked, check_share("chance", chance))
