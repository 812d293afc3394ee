"""A test of groups that is simulated, for calibrations of which no theorem holds anyway.

With Z_1, ..., Z_n the gains of the groups that have an answer (``_betting``), and L = 1.5 groups
more that were lost as a whole, Z = -target times the mean number of answers of these groups,

    T = mean / (sd / sqrt(n + L)),   p-value P(t_(n + L - 1) >= T)

Student's test is of normal means; gains are skewed, since a group has much to lose and little to
gain. The lost groups make up for it: without them, groups that are all right have no variance. For
groups that are right or wrong as a whole the level is known exactly: for targets from .5 to .99 and
20 to 800 groups it is at most 1.0 of .05 and 1.1 of .025, on average 0.2 to 0.8 of them. With L = 1
it is up to 1.4 of .05. It answers more than betting, which is proven.
"""

from __future__ import annotations

import numpy as np

from laplace_metric.calibration._arrays import Array

LOST = 1.5
"""Groups that are added, lost as a whole."""


def student_p_values(gains: Array, low: float, size: Array) -> Array:
    """Return a p-value [T] of "the mean gain is at most 0", for gains [G, T] of G groups.

    Parameters
    ----------
    gains : [G, T]
        Gain of each group, in [-low, 1 - low].
    low : float in (0, 1)
        Largest loss of a group that counts in full.
    size : [G, T]
        Weight of the answers of each group, from 0 to 1.

    Examples
    --------
    >>> student_p_values(np.full((35, 1), 0.1), 0.9, np.ones((35, 1))) <= 0.05
    array([ True])
    """
    from scipy.special import stdtr

    there = gains != 0
    n = there.sum(0) + LOST
    lost = low * (size * there).sum(0) / np.maximum(there.sum(0), 1)
    mean = (gains.sum(0) - LOST * lost) / n
    variance = ((gains**2).sum(0) + LOST * lost**2 - n * mean**2) / np.maximum(n - 1, 1)
    t = mean / np.sqrt(np.maximum(variance, np.finfo(float).tiny) / n)
    return np.asarray(np.where(n > 2, stdtr(np.maximum(n - 1, 1), -t), 1.0))
