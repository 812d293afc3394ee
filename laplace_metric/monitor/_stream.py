"""The stream of one quantity: its values, their conformal p-values, and the bets against them.

The p-value of a value is its place from above among everything so far, the reference, the stream
and itself, ties broken by a uniform draw (Vovk, Gammerman and Shafer 2005, chapter 2). If all of
these are exchangeable, the p-values are independent and uniform on [0, 1], whatever the
distribution and with any ties. (A comparison with the reference alone is not: its p-values share
the reference and are dependent.)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from laplace_metric._utils.validation import Floats
from laplace_metric.calibration._martingale import Martingale


class Stream:
    """One quantity: its reference, all values so far, its bets and its unfinished window.

    Parameters
    ----------
    name : str
        Name of the quantity.
    reference : array [n]
        Values of the reference.
    threshold : float
        Log evidence that raises the alarm, see ``Martingale``.
    """

    def __init__(self, name: str, reference: Floats, threshold: float) -> None:
        self.reference = reference
        self.seen = array("d", np.sort(reference).tobytes())
        self.martingale = Martingale(name, threshold)
        self.window = np.empty(0)

    def take(self, values: Floats, draws: Floats) -> None:
        """Add the next values [m], no more than the window still lacks."""
        self.martingale.update(rank_p_values(self.seen, values, draws))
        self.window = np.concatenate([self.window, values])


def rank_p_values(seen: array[float], values: Floats, draws: Floats) -> Floats:
    """Return p [m] of the next values [m], which join the sorted ``seen``; small = large value.

    ``draws`` [m] in [0, 1) are for ties. Counts are whole numbers, so the result does not depend on
    how a stream is cut.

    Examples
    --------
    >>> rank_p_values(array("d", [1.0, 2.0, 3.0]), np.array([2.5, 9.0]), np.array([0.5, 0.5]))
    array([0.375, 0.1  ])
    """
    found = np.empty(len(values))
    for i, value in enumerate(values.tolist()):
        left, right = bisect_left(seen, value), bisect_right(seen, value)
        found[i] = (len(seen) - right + draws[i] * (right - left + 1)) / (len(seen) + 1)
        seen.insert(right, value)
    return found


# A bet against exchangeability that can be watched for ever.
