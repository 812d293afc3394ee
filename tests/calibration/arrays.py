"""Guarantees of arrays, as the tests of their theory ask for them."""

from __future__ import annotations

from dataclasses import replace

from laplace_metric.calibration import Guarantee, QueriesNeeded, Rule
from laplace_metric.calibration.guarantees._theories import missing_queries
from laplace_metric.calibration.rules._guarantee import judged_queries
from laplace_metric.errors import InputError


def made_or_refused(make, *args, **kwargs) -> tuple[Rule | None, str]:
    """Return a rule, and why it is refused."""
    try:
        return make(*args, **kwargs), ""
    except InputError as error:
        return None, str(error)


def largest_guarantee(p, right, *, confidence=0.95, abstained=None, thresholds=None) -> Rule:
    queries = judged_queries(p, right, abstained, thresholds)
    return Rule.of_largest(queries, Guarantee("precision", None, confidence))


def queries_needed(
    p, right, *, precision, confidence=0.95, chance=0.8, abstained=None, thresholds=None
) -> QueriesNeeded:
    """Of the tested queries: where half of the queries test, it takes twice as many."""
    queries = judged_queries(p, right, abstained, thresholds)
    found = missing_queries(queries, Guarantee("precision", precision, confidence), chance)
    if thresholds is None:
        return found
    halves = [None if m is None else m // 2 for m in (found.more_queries, found.even_chance)]
    return replace(found, more_queries=halves[0], even_chance=halves[1])
