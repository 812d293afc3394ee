"""What is guaranteed, and the role of a theory: queries in, a threshold or a reason out.

A ``Guarantee`` is one value, from the arguments of a call to the file of a rule. Each theory has a
file of its own, and one signature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from laplace_metric._utils.validation import check_name, check_share
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import (
    Fraction,
    OpenSetFraction,
    point_of,
)
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.errors import InputError

QUANTITIES = ("precision", "recall", "fmr", "fpir")
"""Rates that can be guaranteed."""
AT_LEAST = ("precision", "recall")
"""Those that are to be at least the target; the others are to be at most that."""
NAMES = {"fmr": "false match rate", "fpir": "false positive identification rate"}
MATCH, LABEL, HITS = "match", "label", "hits"
"""What an answer is: the first hit, a label, or each hit, which is passed on or not by itself."""
CONFIDENCE = 0.95
ROUNDING = 1e-9


@dataclass(frozen=True)
class Guarantee:
    """A rate, its target, and what it is a rate of.

    Parameters
    ----------
    quantity : "precision" | "recall" | "fmr" | "fpir" or None
        Rate that is kept. None, the default: none is.
    target : float in (0, 1) or None
        Smallest precision or recall, or largest false match or false positive identification rate.
        None, the default, without a rate, and where the largest is looked for.
    confidence : float in (0, 1)
        Probability, over calibration sets, with which it is kept. Default: 0.95.
    of : "match" | "label" | "hits"
        Answers that are right or wrong: the first hit, the label, or each of all hits that are
        passed on. Default: "match".
    alpha : float in (0, 1) or None
        Share of queries with a match that may be called unknown, and are not answered then. None,
        the default: the probability alone decides.
    open_set_fraction : float in (0, 1), OpenSetFraction or None
        Share of open-set queries for which a precision is kept. None, the default: the share among
        the calibration queries.

    Raises
    ------
    InputError
        For numbers outside (0, 1), another rate than a precision of all hits, and a share of
        open-set queries with another rate than a precision.

    Examples
    --------
    >>> print(Guarantee("precision", 0.9))
    a precision of at least 90% with 95% confidence
    """

    quantity: str | None = None
    target: float | None = None
    confidence: float = CONFIDENCE
    of: str = MATCH
    alpha: float | None = None
    open_set_fraction: Fraction | None = None

    def __post_init__(self) -> None:
        check_name("of", self.of, (MATCH, LABEL, HITS))
        if self.alpha is not None:
            self._keep("alpha", check_share("alpha", self.alpha))
        if self.quantity is None:
            return
        check_name("quantity", self.quantity, QUANTITIES)
        if self.target is not None:
            self._keep("target", check_share(self.quantity, self.target))
        self._keep("confidence", check_share("confidence", self.confidence))
        if self.of == HITS and self.quantity != "precision":
            raise InputError(
                f"{self.quantity}= is of one answer a query: of='hits' takes precision=. For a "
                "recall of all relevant items, call keep_relevant(...)."
            )
        if self.open_set_fraction is not None:
            if self.quantity != "precision":
                raise InputError(
                    f"open_set_fraction= is for precision=: no share moves {self.quantity}."
                )
            share = point_of(self.open_set_fraction)
            if not isinstance(self.open_set_fraction, OpenSetFraction):
                self._keep("open_set_fraction", share)

    def _keep(self, name: str, number: float) -> None:
        """Take a number as a float: that of another type has no place in a file."""
        object.__setattr__(self, name, number)

    @classmethod
    def of_rates(
        cls,
        precision: float | None = None,
        recall: float | None = None,
        fmr: float | None = None,
        fpir: float | None = None,
        **how: Any,
    ) -> Guarantee:
        """Return the guarantee of the one rate that is given.

        Parameters
        ----------
        precision, recall, fmr, fpir : float in (0, 1) or None
            Rates, of which one is given. None, the default: another one.
        **how
            Further fields, by name.

        Raises
        ------
        InputError
            Unless one rate is given; as ``Guarantee``.
        """
        rates = {"precision": precision, "recall": recall, "fmr": fmr, "fpir": fpir}
        given = [(name, rate) for name, rate in rates.items() if rate is not None]
        if len(given) != 1:
            raise InputError("pass one of precision=, recall=, fmr=, fpir=.")
        return cls(*given[0], **how)

    @property
    def delta(self) -> float:
        """Probability, over calibration sets, that it does not hold."""
        return 1 - self.confidence

    def at_level(self, delta: float) -> Guarantee:
        """Return the same guarantee that fails with the probability ``delta``."""
        return replace(self, confidence=1 - delta)

    def __str__(self) -> str:
        """Say the rate, its target and the confidence."""
        assert self.quantity is not None
        assert self.target is not None
        name = NAMES.get(self.quantity, self.quantity)
        side = "at least" if self.quantity in AT_LEAST else "at most"
        where = ""
        if isinstance(self.open_set_fraction, OpenSetFraction):
            most = f"{self.open_set_fraction.upper:.1%} of the queries with a hit"
            where = f" where up to {most} have no match"
        elif self.open_set_fraction is not None:
            where = f" where {self.open_set_fraction:.1%} of the queries have no match"
        sure = f"with {100 * self.confidence:g}% confidence"
        return f"a {name} of {side} {100 * self.target:g}% {sure}{where}"


class Chosen(NamedTuple):
    """A threshold that keeps a rate, and what its test gave.

    Parameters
    ----------
    value : float in [0, 1]
        Smallest probability that is accepted.
    target : float
        The rate that is kept.
    bound : float
        Bound of the rate by the test of this threshold.
    estimate : float
        Rate on the tested queries.
    n : int
        Queries, or new classes, that the test rests on.
    """

    value: float
    target: float
    bound: float
    estimate: float
    n: int

    def check(self, quantity: str) -> None:
        """Refuse a threshold whose own queries do not show what would be guaranteed of it.

        Parameters
        ----------
        quantity : "precision" | "recall" | "fmr" | "fpir"
            Rate that is kept.

        Raises
        ------
        InputError
            If the estimate is on the wrong side of the target.
        """
        least = quantity in AT_LEAST
        above = self.estimate - self.target if least else self.target - self.estimate
        if not above >= -ROUNDING:  # NaN, where nothing is accepted, is refused, too
            raise InputError(
                f"{quantity}={self.target:g} cannot be guaranteed: at the threshold of its test "
                f"these queries show {self.estimate:.4g}, {'less' if least else 'more'} than that. "
                "Ask for less, or calibrate on more queries."
            )


class Theory(ABC):
    """Test of a guarantee by queries that no fit has seen."""

    @abstractmethod
    def threshold(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the threshold that accepts most and keeps the rate.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test it.
        asked : Guarantee
            Rate, target and confidence.

        Raises
        ------
        InputError
            If no threshold keeps it, with what would do; where these queries are cross-fitted and
            the theory wants held-out ones.
        """

    @abstractmethod
    def theorem(self, queries: CalibrationQueries, asked: Guarantee) -> str | None:
        """Return the name of the theorem that covers the guarantee; None where it is simulated.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test it.
        asked : Guarantee
            Rate, target and confidence.
        """


class PrecisionTheory(Theory):
    """A theory that tests a precision, and tells what is missing for one."""

    @abstractmethod
    def largest(self, queries: CalibrationQueries, asked: Guarantee) -> Chosen:
        """Return the threshold of the largest precision, in whole per cent, that can be kept.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test it.
        asked : Guarantee
            Precision with a confidence; its target is not read.

        Raises
        ------
        InputError
            If not even 1 % can be.
        """

    @abstractmethod
    def missing(
        self, queries: CalibrationQueries, asked: Guarantee, chance: float
    ) -> QueriesNeeded:
        """Estimate how many more queries to calibrate with it takes to guarantee a precision.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that there are.
        asked : Guarantee
            Precision to be guaranteed.
        chance : float in (0, 1)
            Probability that it can be then, if new queries are answered as these are.
        """

    @abstractmethod
    def fewest(self, queries: CalibrationQueries, asked: Guarantee) -> int:
        """Return the number of queries, or groups, that it takes if all are right.

        Parameters
        ----------
        queries : CalibrationQueries
            Queries that test it.
        asked : Guarantee
            Precision to be guaranteed.
        """


def check_held_out(queries: CalibrationQueries, what: str) -> None:
    """Refuse cross-fitted queries: an FPIR was broken in 8 % of simulations, not 5 %."""
    if queries.cross_fitted:
        raise InputError(f"{what}= takes queries held out: calibrate with cross_fit=0.")


def is_estimated(asked: Guarantee) -> bool:
    """Return whether the share of open-set queries is an estimate, so that no theorem covers it."""
    return isinstance(asked.open_set_fraction, OpenSetFraction)
