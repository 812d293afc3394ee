"""One window against the reference: a two-sample test that sees the tails.

A p-value is three times the smallest of three: Kolmogorov-Smirnov, which sees that the bulk has
shifted, and the number of the window's values among the largest, and among the smallest, 5 % of
both samples together, which is hypergeometric. A few out-of-distribution queries change the tail
alone, which Kolmogorov-Smirnov sees late (compared in ``benchmarks/retrieval``). Ties make each
test more careful, never less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from laplace_metric.monitor._martingale import Alarm, Array

TAIL = 0.05


@dataclass(frozen=True)
class Quantiles:
    """5 %, 50 % and 95 % quantiles of a sample."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Array) -> Quantiles:
        """Compute the quantiles of a sample [n]."""
        return cls(*(float(x) for x in np.quantile(values, (TAIL, 0.5, 1 - TAIL))))


@dataclass(frozen=True)
class ShiftTest:
    """Test of one quantity of a window against the reference.

    Parameters
    ----------
    window, reference : Quantiles
    above, below : float
        Share of the window beyond the reference's 95 % and 5 % quantile.
    larger : float
        Probability that a value of the window is larger than one of the reference, ties half.
    p_value : float
        After Holm's correction for the number of quantities.
    """

    window: Quantiles
    reference: Quantiles
    above: float
    below: float
    larger: float
    p_value: float

    @property
    def direction(self) -> str:
        """In one word."""
        if abs(self.larger - 0.5) < 0.01:
            return "differently spread"
        return "larger" if self.larger > 0.5 else "smaller"


def compare(reference: Array, window: Array) -> ShiftTest:
    """One quantity, before any correction for several.

    Examples
    --------
    >>> reference = np.arange(1000.0)
    >>> compare(reference, reference[::10]).p_value
    1.0
    >>> compare(reference, reference[450:550]).direction
    'differently spread'
    """
    spread = Quantiles.of(reference)
    ordered = np.sort(reference)
    places = sum(np.searchsorted(ordered, window, side) for side in ("left", "right"))
    return ShiftTest(
        Quantiles.of(window),
        spread,
        float((window > spread.high).mean()),
        float((window < spread.low).mean()),
        float(np.mean(places) / 2 / len(reference)),
        p_value(reference, window),
    )


def p_value(reference: Array, window: Array) -> float:
    """Return the p-value of "both are draws from one distribution"."""
    bulk = stats.ks_2samp(reference, window, method="asymp").pvalue
    tails = (tail_p_value(sign * reference, sign * window) for sign in (1, -1))
    return float(min(1.0, 3 * min(bulk, *tails)))


def tail_p_value(reference: Array, window: Array) -> float:
    """Two-sided, exact: the window's share of the largest 5 % of both samples (more with ties).

    The bound depends on the two samples together and not on which is which, so without drift the
    count is hypergeometric.
    """
    both = np.concatenate([reference, window])
    bound = np.quantile(both, 1 - TAIL, method="higher")
    beyond, in_window = int((both >= bound).sum()), int((window >= bound).sum())
    law = stats.hypergeom(len(both), beyond, len(window))
    return float(min(1.0, 2 * min(law.cdf(in_window), law.sf(in_window - 1))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.asarray(p_values)[order] * (len(order) - np.arange(len(order)))
    adjusted = np.minimum(1.0, np.maximum.accumulate(stepped))[np.argsort(order)]
    return [float(x) for x in adjusted]


@dataclass(frozen=True)
class WindowReport:
    """One window of the stream against the reference.

    Parameters
    ----------
    first, last : int
        Its queries, counted from 1.
    level : float
        Of the window's test.
    shift_tests : dict of name to ShiftTest
    evidence : dict of name to float
        log10 of the martingale after the window: 2 are odds of 100 to 1 against "no drift since
        the beginning".
    alarms : tuple of Alarm
        All so far, the earliest first; printed are those of this window, ``new_alarms``.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric.monitor import Monitor
    >>> monitor = Monitor({"uncertainty": torch.arange(1000.0)}, window=100)
    >>> print(*monitor.update({"uncertainty": torch.arange(900.0, 1000.0)}))
    queries 1 to 100: DRIFT
      uncertainty: larger, median 949.5 (reference 499.5), 50.0% above the reference's 95% \
quantile, p = 6e-91
      ALARM at query 10: too many large values of uncertainty since about query 1
    """

    first: int
    last: int
    level: float
    shift_tests: dict[str, ShiftTest]
    evidence: dict[str, float]
    alarms: tuple[Alarm, ...]

    @property
    def drifted(self) -> tuple[str, ...]:
        """The quantities in which this window differs from the reference."""
        tests = self.shift_tests.items()
        return tuple(name for name, test in tests if test.p_value <= self.level)

    @property
    def new_alarms(self) -> tuple[Alarm, ...]:
        """Alarms that one of this window's queries raised."""
        return tuple(alarm for alarm in self.alarms if alarm.at >= self.first)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> WindowReport:
        """Build from the result of ``dataclasses.asdict``."""
        alarms = tuple(Alarm(**alarm) for alarm in content["alarms"])
        tests = {name: _shift_test(test) for name, test in content["shift_tests"].items()}
        return cls(**{**content, "shift_tests": tests, "alarms": alarms})

    def __str__(self) -> str:
        title = "DRIFT" if self.drifted else "no difference seen"
        lines = [f"queries {self.first:,} to {self.last:,}: {title}"]
        lines += [f"  {name}: {self._line(name)}" for name in self.shift_tests]
        return "\n".join([*lines, *(f"  {alarm}" for alarm in self.new_alarms)])

    def _line(self, name: str) -> str:
        test = self.shift_tests[name]
        upper = test.above - test.below >= 0
        share, side = (test.above, "above") if upper else (test.below, "below")
        quantile = "95%" if upper else "5%"
        return (
            f"{test.direction if name in self.drifted else 'as before'}, median "
            f"{test.window.median:.4g} (reference {test.reference.median:.4g}), {share:.1%} {side} "
            f"the reference's {quantile} quantile, p = {test.p_value:.1g}"
        )


def _shift_test(content: dict[str, Any]) -> ShiftTest:
    quantiles = {name: Quantiles(**content[name]) for name in ("window", "reference")}
    return ShiftTest(**{**content, **quantiles})
