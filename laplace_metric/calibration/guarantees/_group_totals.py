"""Rates of queries that come in groups, and of all hits that are passed on: totals of each group.

The tests are in ``_betting``. A group of a list is its hits, where ``of="hits"``.
"""

from __future__ import annotations

from typing import final

import numpy as np

from laplace_metric.calibration._array_namespace import Flags
from laplace_metric.calibration._padding import NO_HIT
from laplace_metric.calibration.guarantees._betting import GroupTests, fewest_groups
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.calibration.guarantees._test_sequences import NEVER
from laplace_metric.calibration.guarantees._theory import (
    HITS,
    Chosen,
    Guarantee,
    PrecisionTheory,
    check_held_out,
    is_estimated,
)
from laplace_metric.errors import InputError

LEAST_FULL = 0.5
"""Share of the places of all lists that hold a hit, from which on betting answers enough."""
BELOW = 20
"""Extra thresholds between 0 and the smallest first-hit probability, tried for of="hits"."""
LACKING = {"fmr": "has a wrong hit", "fpir": "has a query without a match that finds something"}
"""What a false rate counts."""


@final
class GroupTotals(PrecisionTheory):
    """Bets on groups of one size, proven; tests of totals of unequal groups, simulated."""

    def threshold(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the threshold that accepts most and keeps the rate."""
        quantity, target, delta = asked.quantity, asked.target, asked.delta
        assert quantity is not None
        assert target is not None
        if asked.open_set_fraction is not None:
            raise InputError("open_set_fraction= takes independent queries and one answer each.")
        if len(queries.unseen) and quantity == "fpir":
            raise InputError("fpir= of new classes counts classes, not groups: pass no groups=.")
        if quantity in ("fmr", "fpir"):
            check_held_out(queries, quantity)
        elif quantity == "recall" and queries.cross_fitted:
            delta = delta / 2
        tests, right = group_tests(queries, asked)
        p, low = tests.p, target
        if quantity == "precision":
            value = tests.lowest_precise(right, target, delta)
        elif quantity == "recall":
            value = tests.highest_complete(right, target, delta)
        else:
            value, low = tests.lowest_of_false(~right, target, delta), 1 - target
        if value is None:
            (least, told), more_do = tests.fewest(low, delta, queries.unit), True
            if quantity == "precision":
                told, more_do = tests.lacking(right, target, delta, queries.unit)
            elif least <= tests.n_groups:
                told = f"no threshold keeps it beyond what chance explains ({told})"
            raise InputError(
                f"{quantity}={target:g} cannot be guaranteed by these {_units(queries)}: {told}. "
                f"Ask for less{f', or calibrate on more {queries.unit}' if more_do else ''}."
            )
        value = max(value, 0.0)
        accepted = p >= value
        shares = right[accepted] if quantity == "precision" else accepted[right]
        if quantity in ("fmr", "fpir"):
            shares = accepted
        return Chosen(value, target, target, float(shares.mean()), len(queries))

    def theorem(self, queries: CalibrationQueries, asked: Guarantee) -> str | None:
        """Return its name; None of cross-fitted queries, unequal groups and lists mostly empty."""
        if not is_proven(queries, asked):
            return None
        return f"betting on {queries.unit}"

    def largest(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the threshold of the largest precision, in whole per cent, that can be kept."""
        tests, right = group_tests(queries, asked)
        best = tests.largest_precision(right, asked.delta)
        if best is None:
            raise InputError(f"no precision can be guaranteed by these {_units(queries)}.")
        target, value = best
        estimate = float(right[tests.p >= value].mean())
        return Chosen(value, target, target, estimate, len(tests.p))

    def missing(
        self, queries: CalibrationQueries, asked: Guarantee, chance: float
    ) -> QueriesNeeded:
        """Return the fewest groups, or what they lack: how alike new groups are is not known."""
        assert asked.target is not None
        tests, right = group_tests(queries, asked)
        least, told = tests.fewest(asked.target, asked.delta, queries.unit)
        if tests.lowest_precise(right, asked.target, asked.delta) is None:
            told, _ = tests.lacking(right, asked.target, asked.delta, queries.unit)
        return QueriesNeeded(None, 0, 0, least, told)

    def fewest(self, queries: CalibrationQueries, asked: Guarantee) -> int:
        """Return the number of groups that it takes if all are right."""
        assert asked.target is not None
        full = 1.0
        if queries.n_groups and is_proven(queries, asked):
            full = len(queries) / (queries.n_groups * queries.whole_size)
        return fewest_groups(asked.target, asked.delta / 2, full)


def is_proven(queries: CalibrationQueries, asked: Guarantee) -> bool:
    """Return whether a theorem covers the rate; else its test is simulated."""
    if queries.cross_fitted or is_estimated(asked):
        return False
    if not queries.whole_size or len(np.unique(queries.group_sizes)) > 1:
        return False
    if asked.of == HITS and (queries.relevant != NO_HIT).mean() < LEAST_FULL:
        return False
    return queries.thresholds is not None


def group_tests(queries: CalibrationQueries, asked: Guarantee) -> tuple[GroupTests, Flags]:
    """Return the tests of what a rate counts, and which of it is right.

    Raises
    ------
    InputError
        If nothing counts, or no threshold accepts any of it.
    """
    relevant, places = queries.relevant, queries.relevant.shape[1]
    if asked.quantity == "fmr":
        counted = relevant == 0
    elif asked.of == HITS:
        counted = relevant >= 0
    else:
        counted, places = np.zeros_like(relevant, bool), 1
        counted[:, 0] = relevant[:, 0] != -1
        if asked.quantity == "fpir":
            counted[:, 0] = (queries.mated == 0) & (relevant[:, 0] != NO_HIT)
    rows, places_of = counted.nonzero()
    p = np.where(relevant == NO_HIT, NEVER, queries.decided)[rows, places_of]
    if not (p > NEVER).any():
        lack = LACKING.get(asked.quantity or "", "has an answer") if not len(p) else "has an answer"
        raise InputError(
            f"{asked.quantity}= cannot be guaranteed: of these {_units(queries)} none {lack}. "
            f"Calibrate on {queries.unit} of which some do."
        )
    units = queries.group if queries.n_groups else np.arange(len(queries))
    names, unit = np.unique(units[rows], return_inverse=True)
    proven = is_proven(queries, asked)
    most = places * queries.whole_size if proven else None
    grid = queries.thresholds
    if grid is not None and asked.of == HITS:  # hits behind the first have smaller probabilities
        grid = np.concatenate([grid, np.linspace(0, grid.min(), BELOW, endpoint=False)])
    right = relevant[rows, places_of] == 1
    return GroupTests.of(p, unit, len(names), most, grid), right


def _units(queries: CalibrationQueries) -> str:
    return f"{queries.n_groups or len(queries):,} {queries.unit}"
