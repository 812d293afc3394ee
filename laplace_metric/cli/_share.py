"""Shares of queries, as a page shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laplace_metric.evaluation._share_interval import share_interval

SPACE = "\u00a0"
"""That does not break, before a per cent sign."""


@dataclass(frozen=True)
class Share:
    r"""k of n.

    Examples
    --------
    >>> share = Share(9, 10)
    >>> share.percent, share.interval
    ('90\xa0%', '55 to 100\xa0%')
    """

    k: int
    n: int

    @classmethod
    def of(cls, value: float | None, n: int) -> Share:
        """Return a share that was divided already; an empty one if it is not known."""
        return cls(0, 0) if value is None else cls(round(value * n), n)

    @property
    def percent(self) -> str:
        """Share in per cent without decimals; 0 and 100 only where they are exact."""
        return "n/a" if self.n == 0 else percent(self.k / self.n)

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the exact 95 % interval."""
        low, high = share_interval(self.k, self.n)
        return float(low), float(high)

    @property
    def interval(self) -> str:
        """Interval in per cent, rounded outward so that it holds as it is written."""
        if self.n == 0:
            return ""
        low, high = self.ends
        return f"{math.floor(100 * low)} to {math.ceil(100 * high)}{SPACE}%"


def percent(share: float) -> str:
    """Return a share in per cent; with a decimal if it would look like 0 or 100 and is neither.

    Examples
    --------
    >>> [percent(share).replace(SPACE, " ") for share in (0.0, 0.624, 0.999, 0.9999, 1.0)]
    ['0 %', '62 %', '99.9 %', '99.9 %', '100 %']
    """
    hundred = 100 * share
    if 0 < hundred < 0.5 or 99.5 <= hundred < 100:
        return f"{min(99.9, max(0.1, hundred)):.1f}{SPACE}%"
    return f"{hundred:.0f}{SPACE}%"
