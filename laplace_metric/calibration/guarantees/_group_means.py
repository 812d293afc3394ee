"""A test of groups of unequal size, and of those that no theorem covers anyway: simulated.

With Z_1, ..., Z_n the gains of the groups that have an answer (``_betting``), every answer of the
same weight, and L = 1.5 groups more that were lost as a whole, Z = -target c r,

    T = mean / (sd / sqrt(n + L)),   p-value P(t_(n + L - 1) >= T)

with c = sum_g N_g^3 / sum_g N_g^2 of the numbers N_g that the lowest threshold accepts, the size of
the groups that decide where sizes vary, and r the share of them that is accepted. Student's test is
of normal means; gains are skewed, since a group has much to lose and little to gain. The lost
groups make up for it: without them, groups that are all right have no variance. For equal groups
that are right or wrong as a whole the level is known exactly: for targets from .5 to .99 and 20 to
800 groups it is at most 1.0 of .05 and 1.1 of .025, on average 0.2 to 0.8 of them. With L = 1 it is
up to 1.4 of .05. For sizes that are geometric, Pareto, or 1 and 20 to 200, groups that are right or
wrong as a whole and large ones that are wrong more often, it is at most 1.1 of .05 from 36 groups
to 1,000, but for samples without a single large group, of which no test can know. Lost groups of
the mean size break it up to 12-fold, of the size in which an answer is found on average 4-fold. It
answers more than betting, which is proven.
"""

from __future__ import annotations

import numpy as np

from laplace_metric.calibration._arrays import Array

TINY = np.finfo(float).tiny
LOST = 1.5
"""Groups that are added, lost as a whole."""


def student_p_values(gains: Array, low: float, size: Array) -> Array:
    """Return a p-value [T] of "the mean gain is at most 0", for gains [G, T] of G groups.

    Parameters
    ----------
    gains : [G, T]
        Gain of each group, in [-low size, (1 - low) size].
    low : float in (0, 1)
        Largest loss of an answer.
    size : [G, T]
        Number of answers of each group, in any unit; largest at the lowest threshold.

    Examples
    --------
    >>> student_p_values(np.full((35, 1), 0.1), 0.9, np.ones((35, 1))) <= 0.05
    array([ True])
    """
    from scipy.special import stdtr

    whole = size.max(1)
    there = size > 0
    n, accepted = there.sum(0) + LOST, size.sum(0) / np.maximum(whole @ there, TINY)
    lost = low * decisive_size(whole) * accepted
    mean = (gains.sum(0) - LOST * lost) / n
    variance = ((gains**2).sum(0) + LOST * lost**2 - n * mean**2) / np.maximum(n - 1, 1)
    t = mean / np.sqrt(np.maximum(variance, TINY) / n)
    return np.asarray(np.where(n > 2, stdtr(np.maximum(n - 1, 1), -t), 1.0))


def decisive_size(sizes: Array) -> float:
    """Return the size ``sum N^3 / sum N^2`` of the groups [G] that decide on a ratio of sums.

    Examples
    --------
    >>> decisive_size(np.array([5.0, 5.0])), decisive_size(np.array([1.0] * 99 + [50.0])) > 48
    (5.0, True)
    """
    return float((sizes**3).sum() / max((sizes**2).sum(), TINY))
