"""Too many unknown queries: another encoder, or queries that calibration never saw.

Of m calibration queries with a match and a new one like them, ranks are exchangeable: a new query
is unknown at alpha if its rank is among the k = floor(alpha (m + 1)) lowest, so that the share of
such queries that are unknown is r ~ Beta(k, m + 1 - k) over calibration sets. With open-set queries
in a share f, which all may be unknown, the number of Q queries that are unknown is at most

    Binomial(Q, f + (1 - f) r)

of which the upper tail is the p-value of "the queries come as those did that calibrated".

Queries that come one by one, or a few at a time, are counted over all calls. With q the largest
share f + (1 - f) r that is possible, but for a probability of ``RARE / 2``, each call of n queries,
u of which are unknown, is a bet with the stakes s of ``_martingale``,

    gain = (1 - s + s / q)^u (1 - s)^(n - u)

whose expected value is at most 1 while no more than q are unknown. By Ville's inequality the bets
EVER reach ``2 / RARE`` with probability at most ``RARE / 2``, however many calls there are.
"""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from laplace_metric.calibration._martingale import STAKES, Martingale
from laplace_metric.errors import UnfamiliarQueriesWarning, callers_line

RARE = 1e-3
"""Probability of a batch, if it comes as those did that calibrated, of which it is told; and of a
false alarm in all calls together."""
COUNTED = 0.05
"""alpha at which queries are unknown that are counted over all calls."""
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

    @property
    def most(self) -> float:
        """q, the largest share of unknown queries but for a probability of ``RARE / 2``."""
        from scipy.special import betaincinv

        rank, others = self._rank, self.n_queries - self.n_known
        share = betaincinv(rank, self.n_known + 1 - rank, 1 - RARE / 4) if rank else 0.0
        # each may be off with probability RARE / 4
        open_set = betaincinv(others + 0.5, self.n_known + 0.5, 1 - RARE / 4) if others else 0.0
        return float(open_set + (1 - open_set) * share)

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


class UnknownCount:
    """Count of unknown queries over all calls, by any number of threads; it is not saved.

    An excess is told once. It is over when no bet has gained since some later call.

    Parameters
    ----------
    calibrated : UnknownShare
        Share of unknown queries that the calibration explains, at ``COUNTED``.

    Examples
    --------
    >>> count = UnknownCount(UnknownShare(0.05, 1000, 1000))
    >>> [call for call in range(100) if count.take(unknown=1, queries=1) is not None]
    [5]
    """

    def __init__(self, calibrated: UnknownShare) -> None:
        self.calibrated, self.most = calibrated, calibrated.most
        self._taking = threading.Lock()
        self._gains = np.zeros(len(STAKES))
        self._told = False
        self._begin()

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownCount, (self.calibrated,)

    def _begin(self) -> None:
        kinds = ("unknown",) * len(STAKES)
        self._martingale = Martingale("unknown", math.log(2 / RARE), kinds)
        self._counts = np.zeros((len(STAKES), 2), np.int64)  # since the best start of each bet

    def take(self, unknown: int, queries: int, *, told: bool = False) -> tuple[int, int] | None:
        """Count the next call.

        Parameters
        ----------
        unknown, queries : int
            Number of its queries that are unknown, and of all.
        told : bool
            True if the call has been told of by itself. Default: False.

        Returns
        -------
        (int, int) or None
            Unknown and all queries of an excess that is to be told now; None: there is none.
        """
        if not 0 < self.most < 1:
            return None
        stakes = np.array(STAKES)
        hit, miss = np.log1p(stakes * (1 / self.most - 1)), np.log1p(-stakes)
        row = unknown * hit + (queries - unknown) * miss
        with self._taking:
            if self._told:
                self._gains = np.clip(self._gains + row, 0, math.log(2 / RARE))
                self._told = bool(self._gains.any())
                return None
            self._counts[self._martingale.best <= 0] = 0
            self._counts += unknown, queries
            self._martingale.step(row)
            if self._martingale.alarm is None and not told:
                return None
            found = self._counts[self._martingale.best.argmax()].tolist()
            self._gains = np.full(len(STAKES), math.log(2 / RARE))
            self._told = True
            self._begin()
            return None if told else (found[0], found[1])


def warn_if_unfamiliar(
    unknown: np.ndarray, calibrated: UnknownShare, counted: np.ndarray, count: UnknownCount
) -> None:
    """Warn if more of the queries are unknown than the calibration explains.

    Parameters
    ----------
    unknown : [Q]
        Queries of a batch that are unknown.
    calibrated : UnknownShare
        Share of unknown queries that the calibration explains.
    counted : [Q]
        Queries that are unknown at ``COUNTED``.
    count : UnknownCount
        Count over all calls, which takes these queries in.

    Warns
    -----
    UnfamiliarQueriesWarning
        With the share, its exact 95 % interval if it is of one batch, and what to check.
    """
    n, of_batch = len(unknown), int(unknown.sum())
    too_many = of_batch > calibrated.expected * n and calibrated.tail(of_batch, n) < RARE
    excess = count.take(int(counted.sum()), n, told=too_many)
    if too_many:
        _warn(of_batch, n, f", 95% interval {_interval(of_batch, n)}", calibrated.expected)
    elif excess is not None:
        _warn(*excess, " since they became more, over several calls", count.calibrated.expected)


def _interval(count: int, n: int) -> str:
    from laplace_metric.evaluation._share_interval import share_interval

    low, high = share_interval(count, n)
    return f"{float(low):.0%} to {float(high):.0%}"


def _warn(unknown: int, queries: int, more: str, expected: float) -> None:
    warnings.warn(
        f"{unknown:,} of {queries:,} queries ({unknown / queries:.0%}{more}) are unlike all that "
        f"calibrated, where about {expected:.1%} are expected: guarantees do not cover these "
        "queries. Check that they come from the same encoder and version, with the same "
        "preprocessing and scale. If they are of classes that no item has, calibrate with as many: "
        "open_set_fraction=.",
        UnfamiliarQueriesWarning,
        stacklevel=callers_line(),
    )
