"""A bet against exchangeability that can be watched for ever, and the alarm that it raises.

Vovk 2021 ("Testing randomness online"); Shafer and Vovk 2019.

One unit of money is bet against conformal p-values. Its value is a martingale as long as they are
independent and uniform, so by Ville's inequality it EVER reaches ``1 / a`` with probability at
most ``a``: over the draw of reference and stream, and at any length of the stream.

Each bet is that p falls into a region more often than it should,

    f(p) = 1 - s + s / |R| for p in R, else 1 - s,     R: a share of the largest or of the smallest
                                                       values, or the middle half;  s: the stake

and the money is spread over all bets and all times at which a change may begin: the share
``1 / log2(t + 1) - 1 / log2(t + 2)`` is kept for a change at query t (they sum to 1). So a change
after T quiet queries costs about ``log T`` of evidence, not ``T``: a single bet that has run since
the first query would have lost nearly everything by then.

Several quantities have a martingale each, at ``a / Q``: the p-values of one are independent of
their own past, not of that of the others, so the mean of the martingales need not be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p, log2

import numpy as np

from laplace_metric._utils.validation import Floats

SHARES, STAKES = (0.01, 0.05, 0.2, 0.5), (0.05, 0.1, 0.2, 0.4)
REGIONS: tuple[tuple[str, float, float], ...] = (
    *(("large", 0.0, share) for share in SHARES),
    *(("small", 1 - share, 1.0) for share in SHARES),
    ("middling", 0.25, 0.75),
)
"""Which values there are too many of, and the p-values that they have."""
KINDS = tuple(kind for kind, _, _ in REGIONS for _ in STAKES)
EDGES = np.unique([edge for _, low, high in REGIONS for edge in (low, high)])[1:-1]


def log_densities() -> Floats:
    """Return ``log f`` [pieces of [0, 1] between EDGES, bets]; each f integrates to 1."""
    middles = (np.concatenate([[0.0], EDGES]) + np.concatenate([EDGES, [1.0]])) / 2
    inside = [(middles > low) & (middles < high) for _, low, high in REGIONS]
    bets = [
        1 - stake + stake * within / (high - low)
        for within, (_, low, high) in zip(inside, REGIONS, strict=True)
        for stake in STAKES
    ]
    return np.log(np.stack(bets, axis=1))


LOG_DENSITIES = log_densities()


@dataclass(frozen=True)
class Alarm:
    """The evidence against "no drift" has reached what was asked for, for the first time.

    Parameters
    ----------
    name : str
        Quantity that drifted.
    at, since : int
        Query of the alarm, and query at which the bet that has gained most began (an estimate of
        when the change began). Queries are counted from 1.
    kind : "large" | "small" | "middling"
        Kind of values that occur too often.
    """

    name: str
    at: int
    since: int
    kind: str

    def __str__(self) -> str:
        return (
            f"ALARM at query {self.at:,}: too many {self.kind} values of {self.name} "
            f"since about query {self.since:,}"
        )


class Martingale:
    """The value of the bets on one stream of p-values.

    Parameters
    ----------
    name : str
        Name of the quantity, for its alarm.
    threshold : float
        Logarithm of the value that raises the alarm.
    kinds : tuple of str
        Kind of values that each bet is on. Default: those of ``REGIONS``, for ``update``.

    Attributes
    ----------
    alarm : Alarm or None
        First crossing of the threshold; it stays, whatever the value does later. None before it.

    Examples
    --------
    >>> martingale = Martingale("uncertainty", np.log(100.0))
    >>> martingale.update(np.full(40, 0.004)) > 0
    True
    >>> print(martingale.alarm)
    ALARM at query 3: too many large values of uncertainty since about query 1
    """

    def __init__(self, name: str, threshold: float, kinds: tuple[str, ...] = KINDS) -> None:
        self.name, self.threshold, self.kinds = name, threshold, kinds
        self.n = 0
        self.bets = np.full(len(kinds), -np.inf)  # log of the money in each bet, over all starts
        self.best = np.zeros(len(kinds))  # log of the gain since the start that has gained most
        self.since = np.zeros(len(kinds), dtype=np.int64)  # that start
        self.alarm: Alarm | None = None

    @property
    def log_value(self) -> float:
        """The logarithm of what the unit of money has become."""
        unspent = -log(log2(self.n + 2))
        return float(np.logaddexp(np.logaddexp.reduce(self.bets), unspent))

    def update(self, p_values: Floats) -> float:
        """Bet on the next p-values [m]; returns ``log_value``."""
        for row in LOG_DENSITIES[np.searchsorted(EDGES, p_values, "right")]:
            self.step(row)
        return self.log_value

    def step(self, row: Floats) -> None:
        """Bet once, with this log gain of each bet [bets], whose expected gain is at most 1."""
        self.n += 1
        stake = log_share(self.n) - log(len(self.kinds))
        self.since[self.best <= 0] = self.n
        self.best = np.maximum(self.best, 0) + row
        self.bets = np.logaddexp(self.bets, stake) + row
        if self.alarm is None and self.log_value >= self.threshold:
            bet = int(self.best.argmax())
            self.alarm = Alarm(self.name, self.n, int(self.since[bet]), self.kinds[bet])


def log_share(t: int) -> float:
    """Return logarithm of ``1 / log2(t + 1) - 1 / log2(t + 2)``, kept for a change at query t."""
    difference = log1p(1 / (t + 1)) / log(2)
    return log(difference / log2(t + 1) / log2(t + 2))
