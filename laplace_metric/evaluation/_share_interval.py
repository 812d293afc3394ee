"""Exact interval of a share: k of n queries.

    low  = sup{p : P(Bin(n, p) >= k) <= (1 - level) / 2}
    high = inf{p : P(Bin(n, p) <= k) <= (1 - level) / 2}

so that the true share lies between them with a probability of ``level`` or more, whatever it is
(Clopper & Pearson 1934, Biometrika 26). The ends are quantiles of Beta(k, n - k + 1) and
Beta(k + 1, n - k).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import check_share
from laplace_metric.errors import InputError

Ends = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Low and high ends."""


def share_interval(successes: npt.ArrayLike, trials: npt.ArrayLike, level: float = 0.95) -> Ends:
    """Return the exact interval of each share.

    Parameters
    ----------
    successes, trials : array-like of whole numbers, of one shape
        Numbers k of successes in n trials.
    level : float in (0, 1)
        Confidence that the interval holds the true share. Default: 0.95.

    Returns
    -------
    low, high : arrays of that shape, in [0, 1]
        Ends of the interval; 0 and 1 without a trial.

    Raises
    ------
    InputError
        Unless 0 <= successes <= trials, whole numbers; for another level.

    Examples
    --------
    >>> low, high = share_interval(9, 10)
    >>> round(float(low), 3), round(float(high), 3)
    (0.555, 0.997)
    """
    from scipy.stats import beta

    tail = (1 - check_share("level", level)) / 2
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    whole = bool((k == np.floor(k)).all() and (n == np.floor(n)).all())
    if k.shape != n.shape or not whole or bool((k < 0).any() or (k > n).any()):
        raise InputError(
            "successes and trials: pass whole numbers of one shape, 0 <= successes <= trials."
        )
    with np.errstate(invalid="ignore"):
        low = np.where(k == 0, 0.0, beta.ppf(tail, k, n - k + 1))
        high = np.where(k == n, 1.0, beta.ppf(1 - tail, k + 1, n - k))
    return low, high
