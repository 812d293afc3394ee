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

import numpy as np
from scipy import stats

from laplace_metric._utils.validation import Floats
from laplace_metric.io import saved

LEAST = 30
"""Values of a reference and of a window, below which a test can hardly tell anything."""
# One window against the reference: a two-sample test that sees the tails.

TAIL = 0.05


@dataclass(frozen=True)
class Quantiles:
    """5 %, 50 % and 95 % quantiles of a sample."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        """Compute the quantiles of a sample [n]."""
        return cls(*(float(x) for x in np.quantile(values, (TAIL, 0.5, 1 - TAIL))))


@dataclass(frozen=True)
class ShiftTest:
    """Test of one quantity of a window against the reference.

    Parameters
    ----------
    window, reference : Quantiles
        Quantiles of the window and of the reference.
    above, below : float
        Shares of the window above the 95 % and below the 5 % quantile of the reference.
    larger : float
        Probability that a value of the window is larger than one of the reference, ties half.
    p_value : float
        Probability of such a window without drift, after Holm's correction for the number of
        quantities.
    """

    window: Quantiles
    reference: Quantiles
    above: float = saved(0, 1)
    below: float = saved(0, 1)
    larger: float = saved(0, 1)
    p_value: float = saved(0, 1)

    @property
    def direction(self) -> str:
        """Direction of the shift, in one word."""
        if abs(self.larger - 0.5) < 0.01:
            return "differently spread"
        return "larger" if self.larger > 0.5 else "smaller"


def compare(reference: Floats, window: Floats) -> ShiftTest:
    """Compare one quantity, before any correction for several.

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


def p_value(reference: Floats, window: Floats) -> float:
    """Return the p-value of "both are draws from one distribution"."""
    bulk = stats.ks_2samp(reference, window, method="asymp").pvalue
    tails = (tail_p_value(sign * reference, sign * window) for sign in (1, -1))
    return float(min(1.0, 3 * min(bulk, *tails)))


def tail_p_value(reference: Floats, window: Floats) -> float:
    """Test the window's share of the largest 5 % of both samples, two-sided and exact.

    The bound depends on the two samples together and not on which is which, so without drift the
    count is hypergeometric.
    """
    both = np.concatenate([reference, window])
    bound = np.quantile(both, 1 - TAIL, method="higher")
    beyond, in_window = int((both >= bound).sum()), int((window >= bound).sum())
    law = stats.hypergeom(len(both), beyond, len(window))
    return float(min(1.0, 2 * min(law.cdf(in_window), law.sf(in_window - 1))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values (Holm 1979), in the order given.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.asarray(p_values)[order] * (len(order) - np.arange(len(order)))
    adjusted = np.minimum(1.0, np.maximum.accumulate(stepped))[np.argsort(order)]
    return [float(x) for x in adjusted]
