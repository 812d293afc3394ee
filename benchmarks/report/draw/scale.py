"""From values to pixels, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = (1, 2, 2.5, 5, 10)
DECADE = {8: (1, 1.5, 2, 3, 4, 5, 7), 300: (1, 2, 5), math.inf: (1,)}
"""High over low, below which a logarithmic axis has these ticks in each decade."""


@dataclass(frozen=True)
class Axis:
    """What runs along one side of a chart; ``marks`` are ticks chosen by hand."""

    label: str
    low: float
    high: float
    percent: bool = False
    log: bool = False
    marks: tuple[float, ...] = ()

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        low, high, value = (self._flat(x) for x in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def _flat(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values from end to end, unless chosen.

        Examples
        --------
        >>> Axis("", 0, 1).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> Axis("", 0.8, 30, log=True).ticks()
        [1.0, 2.0, 5.0, 10.0, 20.0]
        """
        return list(self.marks) or (self._decades() if self.log else self._steps(wanted))

    def _steps(self, wanted: int) -> list[float]:
        rough = (self.high - self.low) / wanted
        unit = 10 ** math.floor(math.log10(rough))
        step = min(unit * s for s in STEPS if unit * s >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 10) for i in range(first, last + 1)]

    def _decades(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = next(steps for ratio, steps in DECADE.items() if self.high < ratio * self.low)
        found = [float(f"{m}e{p}") for p in powers for m in steps]
        return [x for x in found if self.low <= x <= self.high]

    def text(self, value: float) -> str:
        """A tick as shown."""
        return f"{100 * value:.4g}%" if self.percent else f"{value:.4g}".replace("-", "\u2212")


def around(label: str, values: Iterable[float], log: bool = False, room: float = 0.06) -> Axis:
    """An axis that holds all values, with a little room at both ends."""
    known = [x for x in values if math.isfinite(x) and (x > 0 or not log)] or [1.0]
    low, high = min(known), max(known)
    if log:
        factor = max((high / low) ** room, 1.3)
        return Axis(label, low / factor, high * factor, log=True)
    apart = (high - low) or max(abs(high), 1.0)
    return Axis(label, low - room * apart, high + room * apart)
