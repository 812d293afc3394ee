"""All that is kept of one quantity."""

from __future__ import annotations

import numpy as np

from laplace_metric.monitor.checks import Array
from laplace_metric.monitor.martingale import Martingale
from laplace_metric.monitor.ranks import RunningRanks


class Track:
    """Reference, ranks, bets and the unfinished window of one quantity.

    Parameters
    ----------
    name : str
    reference : [n]
    threshold : float
        Of the martingale.
    """

    def __init__(self, name: str, reference: Array, threshold: float) -> None:
        self.reference = reference
        self.ranks = RunningRanks(reference)
        self.martingale = Martingale(name, threshold)
        self.window = np.empty(0)

    def take(self, values: Array, draws: Array) -> None:
        """The next values [m], no more than the window still lacks; a full one begins anew."""
        self.martingale.update(self.ranks.p_values(values, draws))
        self.window = np.concatenate([self.window, values])
