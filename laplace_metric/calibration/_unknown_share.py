"""Too many unknown queries in a batch: another encoder, or queries that calibration never saw.

Of m calibration queries with a match and a new one like them, ranks are exchangeable: a new query
is unknown at alpha if its rank is among the k = floor(alpha (m + 1)) lowest, so that the share of
such queries that are unknown is r ~ Beta(k, m + 1 - k) over calibration sets. With open-set queries
in a share f, which all may be unknown, the number of Q queries that are unknown is at most

    Binomial(Q, f + (1 - f) r)

of which the upper tail is the p-value of "the queries come as those did that calibrated".
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from laplace_metric.errors import UnfamiliarQueriesWarning, callers_line

RARE = 1e-3
"""Probability of a batch, if it comes as those did that calibrated, of which it is told."""
POINTS = 200
"""Quantiles of r over which the tail is averaged."""


@dataclass(frozen=True)
class UnknownShare:
    """Largest share of unknown queries that the calibration explains.

    Parameters
    ----------
    alpha : float in (0, 1)
        Share of queries with a match that may be unknown.
    n_known, n_queries : int
        Calibration queries that have a match, m, and all of them; the rest are open-set queries.

    Examples
    --------
    >>> share = UnknownShare(0.05, 400, 400)
    >>> round(share.expected, 3), bool(share.tail(490, 1000) < 1e-3), share.tail(50, 1000) > 0.3
    (0.05, True, True)
    """

    alpha: float
    n_known: int
    n_queries: int

    @property
    def open_set(self) -> float:
        """f."""
        return 1 - self.n_known / self.n_queries

    @property
    def expected(self) -> float:
        """Mean share of queries that are unknown."""
        return self.open_set + (1 - self.open_set) * self._rank / (self.n_known + 1)

    @property
    def _rank(self) -> int:
        return math.floor(self.alpha * (self.n_known + 1) * (1 + 1e-12))

    def tail(self, unknown: int, queries: int) -> float:
        """Return P(as many or more of the queries are unknown)."""
        from scipy.special import bdtrc, betaincinv

        if not unknown:
            return 1.0
        at = (np.arange(POINTS) + 0.5) / POINTS
        rank = self._rank  # at 0, no query is ever unknown
        share = betaincinv(rank, self.n_known + 1 - rank, at) if rank else np.zeros(1)
        of_open_set = np.full(1, self.open_set)
        if self.n_known < self.n_queries:  # its share is known from as many queries
            others = self.n_queries - self.n_known
            of_open_set = betaincinv(others + 0.5, self.n_known + 0.5, at)
        together = of_open_set[:, None] + (1 - of_open_set[:, None]) * share
        return float(bdtrc(unknown - 1, queries, together).mean())


def warn_if_unfamiliar(unknown: np.ndarray, calibrated: UnknownShare) -> None:
    """Warn if more of a batch of queries [Q] are unknown than the calibration explains.

    Warns
    -----
    UnfamiliarQueriesWarning
        With the share, its exact 95 % interval, and what to check.
    """
    from laplace_metric.evaluation._share_interval import share_interval

    n, count = len(unknown), int(unknown.sum())
    if count <= calibrated.expected * n or calibrated.tail(count, n) >= RARE:
        return
    low, high = share_interval(count, n)
    warnings.warn(
        f"{count:,} of {n:,} queries ({count / n:.0%}, 95% interval {float(low):.0%} to "
        f"{float(high):.0%}) are unlike all that calibrated, where about "
        f"{calibrated.expected:.1%} are expected: guarantees do not cover these queries. Check "
        "that they come from the same encoder and version, with the same preprocessing and scale. "
        "If they are of classes that no item has, calibrate with as many: open_set_fraction=.",
        UnfamiliarQueriesWarning,
        stacklevel=callers_line(),
    )
