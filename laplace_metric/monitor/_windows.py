"""One window against the reference: a two-sample test that sees the tails.

A p-value is three times the smallest of three: Kolmogorov-Smirnov, which sees that the bulk has
shifted, and the number of the window's values among the largest, and among the smallest, 5 % of
both samples together, which is hypergeometric. A few out-of-distribution queries change the tail
alone, which Kolmogorov-Smirnov sees late (compared in ``benchmarks/retrieval``). Ties make each
test more careful, never less.

One quantity of a stream: checked numbers, conformal p-values, and all that is kept of it.

The p-value of a value is its place from above among everything so far, the reference, the stream
and itself, ties broken by a uniform draw (Vovk, Gammerman and Shafer 2005, chapter 2). If all of
these are exchangeable, the p-values are independent and uniform on [0, 1], whatever the
distribution and with any ties. (A comparison with the reference alone is not: its p-values share
the reference and are dependent.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from laplace_metric._utils.validation import ArrayLike, as_scores
from laplace_metric.errors import InputError
from laplace_metric.monitor._martingale import Alarm, Array, Martingale

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
    law, counts = stats.hypergeom, (len(both), beyond, len(window))
    return float(min(1.0, 2 * min(law.cdf(in_window, *counts), law.sf(in_window - 1, *counts))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    stepped = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    adjusted = np.empty(len(order))
    adjusted[order] = stepped
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


LEAST = 30
"""Values of a reference and of a window, below which a test can hardly tell anything."""


def checked_reference(reference: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Each quantity [n] as float64, n at least ``LEAST``.

    Raises
    ------
    InputError
        For no mapping, or too few values.
    """
    if not isinstance(reference, Mapping) or not reference:
        raise InputError("reference is empty or no mapping: pass {name: values [n]}.")
    columns = {str(name): _numbers(f"reference[{name!r}]", x) for name, x in reference.items()}
    for name, values in columns.items():
        if len(values) < LEAST:
            raise InputError(f"reference[{name!r}] has {len(values)} values: pass {LEAST} or more.")
    return columns


def checked_values(values: Mapping[str, ArrayLike], names: tuple[str, ...]) -> dict[str, Array]:
    """Each of ``names`` [m] as float64, in that order.

    Raises
    ------
    InputError
        For other names, or columns of different lengths.
    """
    if not isinstance(values, Mapping) or set(values) != set(names):
        passed = sorted(map(str, values)) if isinstance(values, Mapping) else type(values)
        raise InputError(
            f"values holds {passed}, the reference {sorted(names)}: pass a mapping with the same "
            "names."
        )
    columns = {name: _numbers(f"values[{name!r}]", values[name]) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"values has the lengths {lengths}: pass one number for each query.")
    return columns


def _numbers(name: str, values: ArrayLike) -> Array:
    column: Array = as_scores(name, values).cpu().numpy()
    return column


BLOCK = 256


class RunningRanks:
    """The place of each value of a stream among all before it.

    Parameters
    ----------
    values : [n]
        Everything so far, in any order.

    Examples
    --------
    >>> ranks = RunningRanks(np.array([1.0, 2.0, 3.0]))
    >>> ranks.p_values(np.array([2.5, 9.0]), np.array([0.5, 0.5]))
    array([0.375, 0.1  ])
    """

    def __init__(self, values: Array) -> None:
        self._sorted = np.sort(values)
        self._recent = np.empty(0)

    @property
    def values(self) -> Array:
        """All values so far, sorted."""
        return np.sort(np.concatenate([self._sorted, self._recent]), kind="stable")

    def p_values(self, values: Array, draws: Array) -> Array:
        """p [m] of the next values [m]; small = large value. ``draws`` [m] in [0, 1) are for ties.

        Counts are whole numbers, so the result does not depend on how a stream is cut.
        """
        starts = range(0, len(values), BLOCK)
        blocks = [self._block(values[i : i + BLOCK], draws[i : i + BLOCK]) for i in starts]
        return np.concatenate([np.empty(0), *blocks])

    def _block(self, values: Array, draws: Array) -> Array:
        recent, first = np.concatenate([self._recent, values]), len(self._recent)
        places = first + np.arange(len(values))
        earlier = np.arange(len(recent)) < places[:, None]
        left, right = (np.searchsorted(self._sorted, values, side) for side in ("left", "right"))
        above = len(self._sorted) - right + (earlier & (recent > values[:, None])).sum(1)
        equal = right - left + (earlier & (recent == values[:, None])).sum(1)
        n = len(self._sorted) + places + 1
        self._recent = recent
        if len(recent) > 4 * BLOCK:
            self._sorted, self._recent = self.values, np.empty(0)
        return (above + draws * (equal + 1)) / n


class StreamState:
    """Reference, ranks, bets and the unfinished window of one quantity.

    Parameters
    ----------
    name : str
    reference : array [n]
    threshold : float
        Of the martingale.
    """

    def __init__(self, name: str, reference: Array, threshold: float) -> None:
        self.reference = reference
        self.ranks = RunningRanks(reference)
        self.martingale = Martingale(name, threshold)
        self.window = np.empty(0)

    def take(self, values: Array, draws: Array) -> None:
        """The next values [m], no more than the window still lacks; a full one begins anew."""
        self.martingale.update(self.ranks.p_values(values, draws))
        self.window = np.concatenate([self.window, values])

    def tensors(self) -> dict[str, Tensor]:
        """All that decides what comes next but the alarm."""
        bets = self.martingale
        arrays: dict[str, Any] = {"reference": self.reference, "values": self.ranks.values}
        arrays |= {"window": self.window, "bets": bets.bets, "best": bets.best, "since": bets.since}
        return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}

    def restore(self, tensors: Mapping[str, Tensor], n: int, alarm: Alarm | None) -> None:
        """Go on from ``tensors`` after n queries."""
        bets = self.martingale
        self.ranks, self.window = RunningRanks(tensors["values"].numpy()), tensors["window"].numpy()
        bets.bets, bets.best, bets.since = (tensors[x].numpy() for x in ("bets", "best", "since"))
        bets.n, bets.alarm = n, alarm
