"""Conformal p-values of a stream (Vovk, Gammerman and Shafer 2005, chapter 2).

The p-value of a value is its place from above among everything so far, the reference, the stream
and itself, ties broken by a uniform draw. If all of these are exchangeable, the p-values are
independent and uniform on [0, 1], whatever the distribution and with any ties. (A comparison with
the reference alone is not: its p-values share the reference and are dependent.)
"""

from __future__ import annotations

import numpy as np

from laplace_metric.monitor.checks import Array

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
        """Everything so far, sorted."""
        return np.sort(np.concatenate([self._sorted, self._recent]), kind="stable")

    def p_values(self, values: Array, draws: Array) -> Array:
        """p [m] of the next values [m]; small = large value. ``draws`` [m] in [0, 1) are for ties.

        Counts are whole numbers, so the result does not depend on how a stream is cut.
        """
        parts = range(0, len(values), BLOCK)
        found = [self._block(values[i : i + BLOCK], draws[i : i + BLOCK]) for i in parts]
        return np.concatenate([np.empty(0), *found])

    def _block(self, values: Array, draws: Array) -> Array:
        seen, first = np.concatenate([self._recent, values]), len(self._recent)
        places = first + np.arange(len(values))
        earlier = np.arange(len(seen)) < places[:, None]
        left, right = (np.searchsorted(self._sorted, values, side) for side in ("left", "right"))
        above = len(self._sorted) - right + (earlier & (seen > values[:, None])).sum(1)
        equal = right - left + (earlier & (seen == values[:, None])).sum(1)
        n = len(self._sorted) + places + 1
        self._recent = seen
        if len(seen) > 4 * BLOCK:
            self._sorted, self._recent = self.values, np.empty(0)
        return (above + draws * (equal + 1)) / n
