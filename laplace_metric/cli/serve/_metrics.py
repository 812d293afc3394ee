"""Counts of the server for Prometheus, and its monitor of drift."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from torch import Tensor

from laplace_metric.calibration._calibration import Calibration
from laplace_metric.errors import InputError
from laplace_metric.monitor import Alarm, Monitor

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends in seconds."""
RECENT = 1000
"""Queries of which the share of unknown ones is shown."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BLOCK = 64
"""Queries that the monitor gets at once: a seventh of the time, and the same results."""
PERIOD = 1_000_000
"""Queries after which a new monitor begins, as one stores 8 bytes of each; alarms stay.

With ``false_alarms`` a, the j-th monitor (from 0) raises an alarm at ``(j + 1) (j + 2)`` times the
evidence that a asks for: the probabilities of a false alarm sum to at most a, however many there
are."""
disable_created_metrics()  # a second series for each counter, with the time at which it began


@dataclass(frozen=True)
class DriftSummary:
    """Summary of the queries that the monitor has seen so far.

    Parameters
    ----------
    signals : tuple of str
        Quantities that are watched.
    queries, windows, drifted : int
        Queries, full windows, and windows that differ from the reference.
    evidence : dict of str to float
        log10 of the odds against "no drift since this monitor began", of each signal.
    alarms : tuple of Alarm
        Alarms of all monitors, the earliest first; queries are counted from the first.
    last_window : str
        First line of the last report; empty before the first full window.
    """

    signals: tuple[str, ...] = ()
    queries: int = 0
    windows: int = 0
    drifted: int = 0
    evidence: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()
    last_window: str = ""

    def __str__(self) -> str:
        if self.alarms:
            return f"Drift. {'. '.join(map(str, self.alarms))}."
        last = f"Last window, {self.last_window}." if self.last_window else ""
        watched = f"No drift in {self.queries:,} queries ({' and '.join(self.signals)})."
        return f"{watched} {last}".rstrip()


class DriftWatch:
    """A ``Monitor`` that any thread may feed and read.

    Parameters
    ----------
    reference : mapping of name to Tensor [n]
        Values of calibration queries.
    window : int
    false_alarms : float
    period : int
        Queries after which a new monitor begins.

    Examples
    --------
    >>> watch = DriftWatch({"uncertainty": torch.rand(500)}, window=100, false_alarms=0.01)
    >>> watch.add({"uncertainty": torch.rand(150) + 1, "other": torch.rand(150)})
    >>> [alarm.name for alarm in watch.summary().alarms]
    ['uncertainty']
    """

    def __init__(
        self,
        reference: Mapping[str, Tensor],
        *,
        window: int,
        false_alarms: float,
        period: int = PERIOD,
    ) -> None:
        self._new = partial(Monitor, reference, window=window, false_alarms=false_alarms)
        self._period, self._periods = period, 0
        self._lock, self._waiting = threading.Lock(), list[Mapping[str, Tensor]]()
        self._past, self._monitor = DriftSummary(), self._next_monitor()

    def add(self, signals: Mapping[str, Tensor]) -> None:
        """Take the signals [m] of the next queries; those without a reference are left out."""
        with self._lock:
            self._waiting.append(signals)
            if sum(len(next(iter(part.values()))) for part in self._waiting) >= BLOCK:
                self._flush()

    def summary(self) -> DriftSummary:
        """Summarise every query that was added."""
        with self._lock:
            self._flush()
            return self._summary()

    def _flush(self) -> None:
        if self._monitor.n >= self._period:
            self._past, self._monitor = self._summary(), self._next_monitor()
        parts, self._waiting = self._waiting, []
        if parts:
            names = self._monitor.streams
            self._monitor.update({x: torch.cat([p[x] for p in parts]).cpu() for x in names})

    def _next_monitor(self) -> Monitor:
        monitor = self._new()
        self._periods += 1
        for stream in monitor.streams.values():
            stream.martingale.threshold += math.log(self._periods * (self._periods + 1))
        return monitor

    def _summary(self) -> DriftSummary:
        past, monitor = self._past, self._monitor
        alarms = [
            replace(alarm, at=past.queries + alarm.at, since=past.queries + alarm.since)
            for alarm in monitor.alarms
        ]
        logs = {name: stream.martingale.log_value for name, stream in monitor.streams.items()}
        return DriftSummary(
            signals=tuple(monitor.streams),
            queries=past.queries + monitor.n,
            windows=past.windows + len(monitor.reports),
            drifted=past.drifted + sum(bool(report.drifted) for report in monitor.reports),
            evidence={name: value / math.log(10) for name, value in logs.items()},
            alarms=(*past.alarms, *alarms),
            last_window=str(monitor.reports[-1]).splitlines()[0] if monitor.reports else "",
        )


def calibration_reference(calibration: Calibration | None) -> dict[str, Tensor]:
    """Return match probabilities of the nearest neighbours of calibration queries.

    They are those of the second half, from which the probability was not learnt, so that queries
    like them are exchangeable with them.

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


class ServerMetrics:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="laplace_metric", registry=self.registry)
        gauge = partial(Gauge, namespace="laplace_metric", registry=self.registry)
        histogram = partial(Histogram, namespace="laplace_metric", registry=self.registry)
        self._requests = counter("requests", "Requests by path and status.", ["path", "status"])
        about = "From a request to its answer."
        self._seconds = histogram("request_seconds", about, ["path"], buckets=BUCKETS)
        self._decisions = counter("decisions", "Searches by what to do with them.", ["decision"])
        self._unknown = counter("unknown", "Queries with no match in the index.")
        about = f"Share of unknown queries among the last {RECENT}."
        self._unknown_share = gauge("unknown_share", about)
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._calls = counter("model_calls", "Calls of the model.")
        self._queries = counter("model_queries", "Queries in calls of the model.")
        self._reloads = counter("reloads", "Reloads of the index.", ["result"])
        self._items = gauge("index_items", "Items of the index.")
        self._watched = gauge("monitor_watched", "1 where drift is watched.")
        self._alarm = gauge("monitor_alarm", "1 after a drift alarm.", ["signal"])
        about = "log10 of the odds against no drift since the beginning."
        self._evidence = gauge("monitor_evidence_log10", about, ["signal"])
        self._monitored = gauge("monitor_queries", "Queries since it began.")
        self._windows = gauge("monitor_windows", "Full windows.")
        about = "Windows that differ from the reference."
        self._drifted = gauge("monitor_drifted_windows", about)
        for decision in ("answer", "abstain", "none"):
            self._decisions.labels(decision)
        for result in ("loaded", "failed"):
            self._reloads.labels(result)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def answer(self, *, accepted: bool | None, unknown: bool | None) -> None:
        """Count a search that was answered."""
        decision = "none" if accepted is None else "answer" if accepted else "abstain"
        self._decisions.labels(decision).inc()
        if unknown is not None:
            self._unknown.inc(unknown)
            self._recent.append(unknown)
            self._unknown_share.set(sum(self._recent) / len(self._recent))

    def batch(self, size: int) -> None:
        """Count a call of the model with ``size`` queries."""
        self._calls.inc()
        self._queries.inc(size)

    def reload(self, *, succeeded: bool) -> None:
        """Count a reload of the index."""
        self._reloads.labels("loaded" if succeeded else "failed").inc()

    def text(self, items: int, drift: DriftSummary | None) -> str:
        """Return the page that Prometheus reads, in its text format 0.0.4."""
        self._items.set(items)
        self._watched.set(drift is not None)
        drift = DriftSummary() if drift is None else drift
        alarmed = {alarm.name for alarm in drift.alarms}
        self._alarm.clear()
        self._evidence.clear()
        for signal, evidence in drift.evidence.items():
            self._alarm.labels(signal).set(signal in alarmed)
            self._evidence.labels(signal).set(evidence)
        self._monitored.set(drift.queries)
        self._windows.set(drift.windows)
        self._drifted.set(drift.drifted)
        return generate_latest(self.registry).decode()
