"""The criterion by which a printed claim is reproduced, contradicted, or not comparable.

A claim asks for a number or for a side, and our measurement has conditions:

    number   agrees if it lies within one unit of the last printed digit and two standard errors
             (ours and the printed one) of what is printed
    side     agrees if our 95 % interval lies on it, disagrees if the interval lies off it, and
             is open if the interval holds both

    SAME      a closed form, or the paper's own runs
    SHORTER   the paper's data or process, with a shorter training
    OTHER     other data or another network

A number that agrees is reproduced, unless it is of OTHER conditions; one that differs is
contradicted under the SAME conditions alone. A side that agrees is reproduced and one that
disagrees contradicted, under any conditions. Everything else is not comparable. A number whose
interval of two standard errors holds ``chance``, what no information would give, does not count as
agreeing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.records import thousandths

REPRODUCED, CONTRADICTED, OPEN = "reproduced", "contradicted", "not comparable"
SAME, SHORTER, OTHER = "same", "shorter", "other"
LEVEL, ERRORS = 0.95, 2.0
"""Of the interval of a side; standard errors within which a number agrees."""


@dataclass(frozen=True)
class Ours:
    """A measurement: its mean, its standard error, and a 95 % interval.

    Parameters
    ----------
    mean : float
    error : float
        Standard error; 0 for what is exact.
    low, high : float
        Ends of the interval.
    text : str
        How a table shows it.
    """

    mean: float
    error: float
    low: float
    high: float
    text: str

    @classmethod
    def exact(cls, value: float, text: str = "") -> Ours:
        """Return a value without an error.

        Examples
        --------
        >>> Ours.exact(0.25).text
        '.250'
        """
        return cls(value, 0.0, value, value, text or thousandths(value))

    @classmethod
    def of_seeds(
        cls, values: Sequence[float], digits: Callable[[float], str] = thousandths
    ) -> Ours:
        """Return mean ± standard error of seeds, with an interval by Student's t.

        Examples
        --------
        >>> ours = Ours.of_seeds([0.1, 0.2, 0.3])
        >>> ours.text, round(ours.low, 3), round(ours.high, 3)
        ('.200 ± .058', -0.048, 0.448)
        """
        mean, error, n = mean_and_standard_error(values)
        half = float(student.ppf((1 + LEVEL) / 2, n - 1)) * error
        return cls(mean, error, mean - half, mean + half, f"{digits(mean)} ± {digits(error)}")

    @classmethod
    def between(cls, value: float, low: float, high: float) -> Ours:
        """Return a value with an interval of another origin; its error is a quarter of the width.

        Examples
        --------
        >>> Ours.between(0.5, 0.25, 0.75).text
        '.500 (.250 to .750)'
        """
        shown = f"{thousandths(value)} ({thousandths(low)} to {thousandths(high)})"
        return cls(value, (high - low) / (2 * ERRORS), low, high, shown)


@dataclass(frozen=True)
class Value:
    """A printed number.

    Parameters
    ----------
    value : float
    unit : float
        One unit of its last printed digit.
    error : float
        Printed standard error. Default: 0.
    chance : float or None
        What no information would give. None, the default: no such number.
    """

    value: float
    unit: float
    error: float = 0.0
    chance: float | None = None

    text = "number"
    """How a table names it."""

    def agrees(self, ours: Ours) -> bool:
        """Return whether our number is this one."""
        if self.chance is not None and abs(ours.mean - self.chance) <= ERRORS * ours.error:
            return False
        allowed = self.unit + ERRORS * math.hypot(ours.error, self.error)
        return abs(ours.mean - self.value) <= allowed

    def verdict(self, ours: Ours, conditions: str) -> str:
        """Return the verdict on a number.

        Examples
        --------
        >>> printed = Value(0.54, 0.01)
        >>> printed.verdict(Ours.exact(0.542), SAME), printed.verdict(Ours.exact(0.6), SAME)
        ('reproduced', 'contradicted')
        >>> printed.verdict(Ours.exact(0.542), OTHER)
        'not comparable'
        """
        if conditions == OTHER:
            return OPEN
        if self.agrees(ours):
            return REPRODUCED
        return CONTRADICTED if conditions == SAME else OPEN


@dataclass(frozen=True)
class Side:
    """A printed direction: above or below a number.

    Parameters
    ----------
    low, high : float
        Open ends of the side. Default: minus and plus infinity.
    """

    low: float = -math.inf
    high: float = math.inf

    @property
    def text(self) -> str:
        """How a table names it.

        Examples
        --------
        >>> Side(low=0).text, Side(high=0.01).text
        ('> 0', '< .01')
        """
        sign, end = ("<", self.high) if self.high < math.inf else (">", self.low)
        return f"{sign} {f'{end:g}'.replace('0.', '.')}"

    def verdict(self, ours: Ours, conditions: str) -> str:
        """Return the verdict on a side; it is the same under all conditions.

        Examples
        --------
        >>> below = Side(high=0)
        >>> below.verdict(Ours.exact(-0.1), OTHER), below.verdict(Ours.exact(0.1), OTHER)
        ('reproduced', 'contradicted')
        >>> below.verdict(Ours.of_seeds([-0.1, 0.1]), OTHER)
        'not comparable'
        """
        if self.low < ours.low and ours.high < self.high:
            return REPRODUCED
        off = ours.high <= self.low or ours.low >= self.high
        return CONTRADICTED if off else OPEN


@dataclass(frozen=True)
class Claim:
    """One printed claim.

    Parameters
    ----------
    where : str
        Table, equation, figure or section.
    what : str
        What is printed there.
    printed : str
        The number as it is printed.
    asked : Value or Side
        What the verdict compares with.
    ours : callable
        Reads our measurement from the records.
    conditions : "same" | "shorter" | "other"
        Conditions of our measurement.
    why : str
        Difference of the conditions, or the known reason of a contradiction. Default: none.
    """

    where: str
    what: str
    printed: str
    asked: Value | Side
    ours: Callable[[], Ours]
    conditions: str
    why: str = ""

    def verdict(self) -> str:
        """Return the verdict by the criterion."""
        return self.asked.verdict(self.ours(), self.conditions)
