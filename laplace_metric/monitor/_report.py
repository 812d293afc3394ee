"""The report of a window: which quantities drifted in it, and the evidence so far."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.calibration._martingale import Alarm
from laplace_metric.io import saved
from laplace_metric.monitor._window_tests import ShiftTest


@dataclass(frozen=True)
class WindowReport:
    """One window of the stream against the reference.

    Parameters
    ----------
    first, last : int
        First and last query of the window, counted from 1.
    level : float
        Level of the test of a window.
    shift_tests : dict of name to ShiftTest
        Test of each quantity of the window against the reference.
    evidence : dict of name to float
        Logarithm (base 10) of the martingale after the window: 2 are odds of 100 to 1 against
        "no drift since the beginning".
    alarms : tuple of Alarm
        All alarms so far, the earliest first; printed are those of this window, ``new_alarms``.

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
    level: float = saved(0, 1)
    shift_tests: dict[str, ShiftTest] = saved()
    evidence: dict[str, float] = saved()
    alarms: tuple[Alarm, ...] = saved()

    @property
    def drifted(self) -> tuple[str, ...]:
        """The quantities in which this window differs from the reference."""
        tests = self.shift_tests.items()
        return tuple(name for name, test in tests if test.p_value <= self.level)

    @property
    def new_alarms(self) -> tuple[Alarm, ...]:
        """Alarms that one of this window's queries raised."""
        return tuple(alarm for alarm in self.alarms if alarm.at >= self.first)

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
