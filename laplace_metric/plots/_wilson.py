"""Wilson interval of a share that was counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# An interval for a share that was counted.


Z = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""


def wilson_interval(
    successes: npt.NDArray[Any], n: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute the 95 % interval of each share: all p whose test does not reject the counts.

        |s / n - p| <= z sqrt(p (1 - p) / n),   solved for p:
        (s + z^2 / 2 +- z sqrt(s (n - s) / n + z^2 / 4)) / (n + z^2)

    It never leaves [0, 1] and has a length where all or none succeeded.

    Parameters
    ----------
    successes, n : arrays [B]
        Counts, or means of counts: ``0 <= successes <= n`` and ``n > 0``.

    Returns
    -------
    (low, high) : arrays [B] in [0, 1]

    Notes
    -----
    Wilson (1927), *Probable inference, the law of succession, and statistical inference*.

    Examples
    --------
    >>> low, high = wilson_interval(np.array([0, 5, 10]), np.array([10, 10, 10]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.237, 0.722], [0.278, 0.763, 1.0])
    """
    centre = (successes + Z**2 / 2) / (n + Z**2)
    half = Z * np.sqrt(successes * (n - successes) / n + Z**2 / 4) / (n + Z**2)
    return (centre - half).clip(0, 1), (centre + half).clip(0, 1)
