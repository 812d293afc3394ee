"""Counts of the server for Prometheus, and its monitor of drift."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
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
PERIOD = 1_000_000
"""Queries after which a new monitor begins, as one stores 8 bytes of each; alarms stay.

With ``false_alarms`` a, the j-th monitor (from 0) raises an alarm at ``(j + 1) (j + 2)`` times the
evidence that a asks for: the probabilities of a false alarm sum to at most a, however many there
are."""
disable_created_metrics()  # a second series for each counter, with the time at which it began


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

    Attributes
    ----------
    alarms : tuple of Alarm
        Alarms of all monitors, the earliest first; queries are counted from the first.
    queries, windows, drifted : int
        Queries, full windows, and windows that differ from the reference.
    evidence : dict of str to float
        log10 of the odds against "no drift since this monitor began", of each signal.

    Examples
    --------
    >>> watch = DriftWatch({"uncertainty": torch.rand(500)}, window=100, false_alarms=0.01)
    >>> watch.add({"uncertainty": torch.rand(150) + 1, "other": torch.rand(150)})
    >>> [alarm.name for alarm in watch.alarms]
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
        self._period, self._periods, self._lock = period, 0, threading.Lock()
        self.queries = self.windows = self.drifted = self._before = 0
        self._past: tuple[Alarm, ...] = ()
        self.alarms: tuple[Alarm, ...] = ()
        self._begin()

    def _begin(self) -> None:
        """Begin with a new monitor, which asks for more evidence than the one before."""
        self._monitor, self._past, self._before = self._new(), self.alarms, self.queries
        self._periods += 1
        for stream in self._monitor.streams.values():
            stream.martingale.threshold += math.log(self._periods * (self._periods + 1))

    def add(self, signals: Mapping[str, Tensor]) -> None:
        """Take the signals [m] of the next queries; those without a reference are left out."""
        with self._lock:
            if self._monitor.n >= self._period:
                self._begin()
            monitor, before = self._monitor, self._before
            reports = monitor.update({name: signals[name].cpu() for name in monitor.streams})
            self.queries = before + monitor.n
            self.windows += len(reports)
            self.drifted += sum(bool(report.drifted) for report in reports)
            here = (
                replace(alarm, at=before + alarm.at, since=before + alarm.since)
                for alarm in monitor.alarms
            )
            self.alarms = (*self._past, *here)

    @property
    def evidence(self) -> dict[str, float]:
        """Evidence of drift by signal."""
        streams = self._monitor.streams.items()
        return {name: stream.martingale.log_value / math.log(10) for name, stream in streams}

    def __str__(self) -> str:
        if self.alarms:
            return f"Drift. {'. '.join(map(str, self.alarms))}."
        watched = f"No drift in {self.queries:,} queries ({' and '.join(self._monitor.streams)})."
        if not self._monitor.reports:
            return watched
        return f"{watched} Last window, {str(self._monitor.reports[-1]).splitlines()[0]}."


def calibration_reference(calibration: Calibration | None) -> dict[str, Tensor]:
    """Return match probabilities and epistemic numbers of calibration queries, by signal.

    Match probabilities are those of the half that tests, with which queries like them are
    exchangeable; cross-fitted, they are not. Epistemic numbers are stored for queries with a match
    alone: they are watched where all calibration queries have one.

    Raises
    ------
    InputError
        If neither is there; and for an index that its own items calibrated: each was asked of a
        smaller index than new queries are, and the difference would become an alarm.
    """
    if calibration is None:
        return {}
    if calibration.own_items:
        raise InputError(
            "the index is calibrated by cross-fitting, by its own items, which new queries differ "
            "from even without drift."
        )
    found = {}
    if not calibration.cross_fitted:
        found["match probability"] = torch.from_numpy(calibration.probability[:, 0])
    if bool(calibration.known.all()):
        found["epistemic"] = torch.from_numpy(calibration.statistics[:, 1])
    if not found:
        raise InputError(
            "the index is calibrated by fewer than 1,000 queries, some of them without a match."
        )
    return found


class ServerMetrics:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="laplace_metric", registry=self.registry)
        gauge = partial(Gauge, namespace="laplace_metric", registry=self.registry)
        self._requests = counter("requests", "Requests by path and status.", ["path", "status"])
        self._seconds = Histogram(
            "request_seconds", "From a request to its answer.", ["path"], "laplace_metric",
            registry=self.registry, buckets=BUCKETS,
        )  # fmt: skip
        self._decisions = counter("decisions", "Searches by what to do with them.", ["decision"])
        self._unknown = counter("unknown", "Queries with no match in the index.")
        self._recent: deque[bool] = deque(maxlen=RECENT)
        about = f"Share of unknown queries among the last {RECENT}."
        self._unknown_share = gauge("unknown_share", about)
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

    def text(self, items: int, drift: DriftWatch | None) -> str:
        """Return the page that Prometheus reads, in its text format 0.0.4."""
        self._items.set(items)
        self._watched.set(drift is not None)
        self._alarm.clear()
        self._evidence.clear()
        if drift is not None:
            alarmed = {alarm.name for alarm in drift.alarms}
            for signal, evidence in drift.evidence.items():
                self._alarm.labels(signal).set(signal in alarmed)
                self._evidence.labels(signal).set(evidence)
        self._monitored.set(0 if drift is None else drift.queries)
        self._windows.set(0 if drift is None else drift.windows)
        self._drifted.set(0 if drift is None else drift.drifted)
        return generate_latest(self.registry).decode()
