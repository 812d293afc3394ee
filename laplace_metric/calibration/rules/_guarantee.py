"""A guarantee of probabilities of yours: which to accept."""

from __future__ import annotations

import warnings

import numpy as np

from laplace_metric._utils.validation import ArrayLike, as_floats
from laplace_metric.calibration._array_namespace import Array, Flags
from laplace_metric.calibration._group_column import read_groups
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._theory import Guarantee
from laplace_metric.calibration.rules._rule import Rule
from laplace_metric.calibration.scores._copied_scores import copies_among
from laplace_metric.errors import InputError, NonFiniteError, ScoresWarning, callers_line


def guarantee(
    probability: ArrayLike,
    correct: ArrayLike,
    *,
    precision: float | None = None,
    recall: float | None = None,
    fmr: float | None = None,
    fpir: float | None = None,
    confidence: float = 0.95,
    abstained: ArrayLike | None = None,
    thresholds: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Rule:
    """Return the rule that accepts most of some probabilities and keeps a rate.

    Use ``calibrate_scores`` for scores that are not probabilities, and ``index.guarantee`` for an
    index. Compare probabilities with ``rule.value``.

    Parameters
    ----------
    probability : [n]
        Probability in [0, 1] that the nearest neighbour of each held-out query is a match, by a fit
        to other queries.
    correct : [n]
        Truth about each nearest neighbour: booleans, or 1 for a match and 0 for none.
    precision : float in (0, 1) or None
        Smallest share of the accepted neighbours that are a match; the rule has the lowest
        threshold that keeps it. Pass exactly one of the four rates; None, the default, for the
        others.
    recall : float in (0, 1) or None
        Smallest share of the matches that are accepted; the rule has the highest threshold that
        keeps it. None, the default: another rate.
    fmr : float in (0, 1) or None
        Largest share of the neighbours that are no match and are accepted; the rule has the lowest
        threshold that keeps it. None, the default: another rate.
    fpir : float in (0, 1) or None
        Largest share of the queries whose neighbour is no match and that are answered. With one
        neighbour a query it is the same as ``fmr``. None, the default: another rate.
    confidence : float in (0, 1)
        Probability, over held-out sets, with which the rate is kept. Default: 0.95.
    abstained : [n] booleans, or None
        True for held-out queries that are not answered, whatever the threshold. None, the default:
        the threshold alone decides.
    thresholds : [m] or None
        Probabilities of other queries, such as those that fitted the probability, among which a
        threshold for a precision is chosen: the guarantee is then exact. None, the default: those
        of the tested queries; the first test of each sequence then leaves one query out.
    groups : [n] numbers or strings, or None
        Group of each query: those of a group depend on each other, and groups are counted. None,
        the default: queries are independent.

    Raises
    ------
    InputError
        Unless one target in (0, 1) is given, and as many hits as probabilities in [0, 1]; if no
        threshold keeps it, with the best that one does.

    Warns
    -----
    ScoresWarning
        If queries look like copies of each other.

    Examples
    --------
    >>> p = np.linspace(0, 1, 1000)
    >>> print(guarantee(p, p > 0.5, recall=0.9))
    accepts the first hit if its match probability is at least 0.5385
    guarantees a recall of at least 90% with 95% confidence (proven by order statistics)
    on 1,000 held-out queries: recall 92.40%; answers 46.2% of all
    """
    asked = Guarantee.of_rates(precision, recall, fmr, fpir, confidence=confidence)
    queries = judged_queries(probability, correct, abstained, thresholds, groups)
    if groups is None:
        _warn_of_copies(queries)
    return Rule.guaranteeing(queries, asked)


def _warn_of_copies(queries: CalibrationQueries) -> None:
    exists = np.ones(queries.probability.shape, bool)
    first = copies_among(queries.probability[..., None], exists, queries.relevant, [])
    if n := int((~first).sum()):
        warnings.warn(
            f"{n:,} of {len(first):,} queries look like copies, with the probability of another. "
            "If they are, guarantees are broken more often than their confidence says: pass the "
            f"{len(first) - n:,} distinct queries alone, or groups=, the question of each.",
            ScoresWarning,
            stacklevel=callers_line(),
        )


def judged_queries(
    probability: ArrayLike,
    correct: ArrayLike,
    abstained: ArrayLike | None = None,
    thresholds: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> CalibrationQueries:
    """Return held-out queries, checked; see ``guarantee``."""
    p = _rates("probability", probability)
    right = _flags("correct", correct, len(p))
    out = np.zeros(len(p), bool) if abstained is None else _flags("abstained", abstained, len(p))
    grid = np.empty(0) if thresholds is None else _rates("thresholds", thresholds)
    group = np.empty(0) if groups is None else read_groups(groups, len(p)).astype(np.float64)
    return CalibrationQueries.of_answers(
        p, right, right, grid=grid, abstained=out, cross_fitted=False, group=group
    )


def _flags(name: str, values: ArrayLike, n: int) -> Flags:
    flags = _rates(name, values, n)
    if not np.isin(flags, (0, 1)).all():
        raise InputError(f"{name} has values between 0 and 1: pass booleans, or 0 and 1.")
    return flags == 1


def _rates(name: str, values: ArrayLike, n: int | None = None) -> Array:
    """Return numbers [Q] in [0, 1], as many as ``n`` probabilities."""
    rates = as_floats(name, values)
    if rates.ndim != 1 or not rates.size:
        raise InputError(f"{name} has shape {rates.shape}: pass the shape [Q], at least one row.")
    if n is not None and len(rates) != n:
        raise InputError(
            f"{name} has length {len(rates)} but probability has {n}: pass one for each row."
        )
    if not np.isfinite(rates).all():
        raise NonFiniteError(
            f"{name} holds {int((~np.isfinite(rates)).sum())} NaN or infinite values. Keep the "
            "rows where it is finite."
        )
    if rates.min() < 0 or rates.max() > 1:
        raise InputError(
            f"{name} lies in [{rates.min():g}, {rates.max():g}]: pass values in [0, 1]."
        )
    return rates
