"""The monitor of a server: whether queries still look like those that calibrated the index."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from laplace_metric.calibration._calibration import Calibration
from laplace_metric.errors import InputError
from laplace_metric.monitor import Alarm, Monitor

BLOCK = 64
"""Queries that are handed to the monitor at once; it does not matter to what it says."""
PERIOD = 1_000_000
"""Queries after which a new monitor begins, as one keeps 8 bytes of each; alarms stay.

With ``false_alarms`` a, the j-th monitor (from 0) raises an alarm at ``(j + 1) (j + 2)`` times the
evidence that a asks for: the probabilities of a false alarm sum to at most a, however many there
are."""


@dataclass(frozen=True)
class DriftSummary:
    """Summary of the queries that the monitor has seen so far.

    Parameters
    ----------
    signals : tuple of str
        What is watched of each query.
    queries, windows, drifted : int
        Queries, full windows, and windows that differ from the reference.
    evidence : dict of str to float
        log10 of the odds against "no drift since this monitor began", of each signal.
    alarms : tuple of str
        In words, the earliest first.
    alarmed : tuple of str
        Their signals.
    last_window : str
        In words; empty before the first full one.
    """

    signals: tuple[str, ...]
    queries: int
    windows: int
    drifted: int
    evidence: dict[str, float]
    alarms: tuple[str, ...]
    alarmed: tuple[str, ...]
    last_window: str

    def __str__(self) -> str:
        if self.alarms:
            return f"Drift. {'. '.join(self.alarms)}."
        what = " and ".join(self.signals)
        return f"No drift in {self.queries:,} queries ({what}). {self.last_window}".rstrip()


class DriftWatch:
    """A ``Monitor`` that any thread may feed and read.

    Parameters
    ----------
    reference : mapping of name to Tensor [n]
        Of held-out queries.
    window : int
    false_alarms : float

    Examples
    --------
    >>> watch = DriftWatch({"uncertainty": torch.rand(500)}, window=100, false_alarms=0.01)
    >>> watch.add({"uncertainty": torch.rand(150) + 1, "other": torch.rand(150)})
    >>> watch.summary().alarmed
    ('uncertainty',)
    """

    def __init__(
        self,
        reference: Mapping[str, Tensor],
        *,
        window: int,
        false_alarms: float,
        period: int = PERIOD,
    ) -> None:
        self._reference, self._period = dict(reference), period
        self._window, self._false_alarms = window, false_alarms
        self._lock, self._waiting = threading.Lock(), list[dict[str, Tensor]]()
        self._periods = self._before = self._windows = self._drifted = 0
        self._alarms: list[Alarm] = []
        self._monitor = self._new()

    def add(self, signals: Mapping[str, Tensor]) -> None:
        """The signals [m] of the next queries; those without a reference are left out."""
        with self._lock:
            self._waiting.append({name: signals[name].cpu() for name in self._reference})
            if sum(len(next(iter(part.values()))) for part in self._waiting) >= BLOCK:
                self._flush()

    def summary(self) -> DriftSummary:
        """Summarise every query that was added."""
        with self._lock:
            self._flush()
            monitor, reports = self._monitor, self._monitor.reports
            alarms = self._all_alarms()
            last = str(reports[-1]).splitlines()[0] if reports else ""
            return DriftSummary(
                tuple(monitor.streams),
                self._before + monitor.n,
                self._windows + len(reports),
                self._drifted + sum(bool(report.drifted) for report in reports),
                {
                    name: stream.martingale.log_value / torch.log(torch.tensor(10.0)).item()
                    for name, stream in monitor.streams.items()
                },
                tuple(map(str, alarms)),
                tuple(alarm.name for alarm in alarms),
                f"Last window, {last}." if last else "",
            )

    def _flush(self) -> None:
        if not self._waiting:
            return
        parts, self._waiting = self._waiting, []
        if self._monitor.n >= self._period:
            self._begin_anew()
        self._monitor.update(
            {name: torch.cat([part[name] for part in parts]) for name in self._reference}
        )

    def _begin_anew(self) -> None:
        reports = self._monitor.reports
        self._alarms = self._all_alarms()
        self._windows += len(reports)
        self._drifted += sum(bool(report.drifted) for report in reports)
        self._before += self._monitor.n
        self._periods += 1
        self._monitor = self._new()

    def _all_alarms(self) -> list[Alarm]:
        """Return the alarms of every monitor so far, with queries counted from the first."""
        now = [
            replace(alarm, at=self._before + alarm.at, since=self._before + alarm.since)
            for alarm in self._monitor.alarms
        ]
        return [*self._alarms, *now]

    def _new(self) -> Monitor:
        monitor = Monitor(self._reference, window=self._window, false_alarms=self._false_alarms)
        for stream in monitor.streams.values():
            stream.martingale.threshold += math.log((self._periods + 1) * (self._periods + 2))
        return monitor


def calibration_reference(calibration: Calibration | None) -> dict[str, Tensor]:
    """The match probability of the nearest neighbour of the held-out queries of the second half.

    Those from which it was not learnt, so that queries like them are exchangeable with them.

    Raises
    ------
    InputError
        For a cross-fitted calibration: each of its queries was asked of a smaller index than new
        queries are, and the difference would become an alarm.
    """
    if calibration is None:
        return {}
    if calibration.cross_fitted:
        raise InputError(
            "the index is calibrated by cross-fitting, by its own items, which new queries differ "
            "from even without drift: drift is not watched. Give held-out queries: --reference DATA"
        )
    return {"match probability": torch.from_numpy(calibration.probability[:, 0])}
