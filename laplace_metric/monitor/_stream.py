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
from dataclasses import dataclass
from math import log

import numpy as np
from jaxtyping import Float, Int

from laplace_metric._utils.validation import Floats
from laplace_metric.calibration._martingale import LOG_DENSITIES, Alarm, Martingale, log_share
from laplace_metric.errors import FileFormatError
from laplace_metric.io import saved

ROUNDING = 1e-6
"""Added to bounds of logarithms that are sums of rounded terms."""


@dataclass(frozen=True)
class SavedStream:
    """Arrays of a stream in a file: its reference, all its values, its window and its bets.

    Parameters
    ----------
    reference : [r]
        Values of the reference.
    values : [v]
        Reference and all n values so far, ascending.
    window : [w]
        Values of the unfinished window.
    bets, best, since : [36]
        State of the bets, see ``Martingale``.
    """

    reference: Float[np.ndarray, " r"]
    values: Float[np.ndarray, " v"]
    window: Float[np.ndarray, " w"]
    bets: Float[np.ndarray, " B"] = saved(infinite=True)
    best: Float[np.ndarray, " B"] = saved(least=LOG_DENSITIES.min() - ROUNDING)
    since: Int[np.ndarray, " B"] = saved(least=0)

    def check_after(self, n: int, where: str) -> None:
        """Raise unless n queries can have left these values.

        Raises
        ------
        FileFormatError
            With the array, its values and the values that it may have.
        """
        if len(self.values) != len(self.reference) + n:
            shape, wanted = [len(self.values)], [len(self.reference) + n]
            raise FileFormatError(f"{where}/values has shape {shape}, not {wanted}")
        if (np.diff(self.values) < 0).any():
            raise FileFormatError(f"{where}/values are not in ascending order")
        own, counts = np.unique(np.append(self.reference, self.window), return_counts=True)
        left, right = (np.searchsorted(self.values, own, side) for side in ("left", "right"))
        if (right - left < counts).any():
            raise FileFormatError(f"{where}/values do not hold all of its reference and window")
        most = n * LOG_DENSITIES.max() + ROUNDING
        # an empty bet has no money; later, each holds at least what was staked on it last
        least = (
            log_share(n) - log(len(self.bets)) + LOG_DENSITIES.min() - ROUNDING if n else -np.inf
        )
        bounds = {
            "bets": (self.bets, least, most if n else -np.inf),
            "best": (self.best, LOG_DENSITIES.min() - ROUNDING if n else 0.0, most if n else 0.0),
            "since": (self.since, min(1, n), n),
        }
        for name, (held, low, high) in bounds.items():
            if not ((held >= low) & (held <= high)).all():
                raise FileFormatError(
                    f"{where}/{name} is from {held.min():g} to {held.max():g}, which {n} queries "
                    f"cannot leave: they leave {low:g} to {high:g}"
                )


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

    def saved(self) -> SavedStream:
        """Return the arrays of a file."""
        bets = self.martingale
        values = np.array(self.seen)
        return SavedStream(self.reference, values, self.window, bets.bets, bets.best, bets.since)

    def restore(self, arrays: SavedStream, n: int, alarm: Alarm | None, where: str) -> None:
        """Go on from the arrays of a file, after n queries.

        Raises
        ------
        FileFormatError
            If n queries cannot have left them.
        """
        arrays.check_after(n, where)
        bets = self.martingale
        bets.n, bets.alarm = n, alarm
        # copies: those of a file may be read-only
        bets.bets, bets.best, bets.since = (
            x.copy() for x in (arrays.bets, arrays.best, arrays.since)
        )
        self.seen, self.window = array("d", arrays.values.tobytes()), arrays.window.copy()
        if alarm is None and bets.log_value >= bets.threshold:
            raise FileFormatError(f"{where}/bets are those of an alarm, of which the file has none")
        if alarm is not None and not (
            alarm.name == bets.name
            and 1 <= alarm.since <= alarm.at <= n
            and alarm.kind in bets.kinds
        ):
            raise FileFormatError(f"{where} has an alarm that {n} queries cannot raise: {alarm}")


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
