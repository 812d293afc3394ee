"""Counts and latencies of a server as Prometheus reads them (text exposition format 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from laplace_metric.cli.serve._drift import DriftSummary

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends in seconds."""
RECENT = 1000
"""Queries of which the share of unknown ones is shown."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MetricFamily:
    """One metric with its samples.

    Parameters
    ----------
    name, kind, about : str
        kind: counter, gauge or histogram.
    samples : tuple of (suffix, labels, value)

    Examples
    --------
    >>> print(MetricFamily("up", "gauge", "1 if it runs", (("", (("of", "a"),), 1.0),)))
    # HELP up 1 if it runs
    # TYPE up gauge
    up{of="a"} 1.0
    """

    name: str
    kind: str
    about: str
    samples: tuple[tuple[str, Labels, float], ...]

    def __str__(self) -> str:
        lines = [f"# HELP {self.name} {self.about}", f"# TYPE {self.name} {self.kind}"]
        for suffix, labels, value in self.samples:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"{self.name}{suffix}{'{' + inside + '}' if inside else ''} {value!r}")
        return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class LatencyHistogram:
    """Seconds in buckets."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(BUCKETS) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def samples(self, labels: Labels) -> Iterable[tuple[str, Labels, float]]:
        """Cumulative, as the format wants them."""
        so_far = 0
        ends = [*map(str, BUCKETS), "+Inf"]
        for end, count in zip(ends, self.counts, strict=True):
            so_far += count
            yield "_bucket", (*labels, ("le", end)), float(so_far)
        yield "_sum", labels, self.total
        yield "_count", labels, float(so_far)


class ServerMetrics:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, self._decisions = Counter[Labels](), Counter[str]()
        self._reloads, self._batches = Counter[str](), Counter[str]()
        self._latency: dict[str, LatencyHistogram] = {}
        self._recent: deque[bool] = deque(maxlen=RECENT)

    def request(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[("path", path), ("status", str(status))] += 1
            self._latency.setdefault(path, LatencyHistogram()).observe(seconds)

    def answer(self, *, accepted: bool | None, unknown: bool | None) -> None:
        """A search was answered."""
        with self._lock:
            words = {True: "answer", False: "abstain", None: "none"}
            self._decisions[words[accepted]] += 1
            if unknown is not None:
                self._decisions["unknown"] += unknown
                self._recent.append(unknown)

    def batch(self, size: int) -> None:
        """The model was called with ``size`` queries."""
        with self._lock:
            self._batches["calls"] += 1
            self._batches["queries"] += size

    def reload(self, *, succeeded: bool) -> None:
        """The index was loaded again, or could not be."""
        with self._lock:
            self._reloads["loaded" if succeeded else "failed"] += 1

    def text(self, items: int, drift: DriftSummary | None) -> str:
        """The page that Prometheus reads."""
        with self._lock:
            families = [*self._families(items), *_of_drift(drift)]
        return "\n".join(map(str, families)) + "\n"

    def _families(self, items: int) -> Iterable[MetricFamily]:
        def family(
            name: str, kind: str, about: str, *samples: tuple[str, Labels, float]
        ) -> MetricFamily:
            return MetricFamily(f"laplace_metric_{name}", kind, about, samples)

        requests = [("", labels, float(n)) for labels, n in sorted(self._requests.items())]
        yield family("requests_total", "counter", "Requests by path and status.", *requests)
        latency = [
            sample
            for path, histogram in sorted(self._latency.items())
            for sample in histogram.samples((("path", path),))
        ]
        yield family("request_seconds", "histogram", "From a request to its answer.", *latency)
        names = ("answer", "abstain", "none")
        decided = [("", (("decision", name),), float(self._decisions[name])) for name in names]
        yield family("decisions_total", "counter", "Searches by what to do with them.", *decided)
        unknown = float(self._decisions["unknown"])
        about = "Queries with no match in the index."
        yield family("unknown_total", "counter", about, ("", (), unknown))
        share = sum(self._recent) / len(self._recent) if self._recent else 0.0
        about = f"Share of unknown queries among the last {RECENT}."
        yield family("unknown_share", "gauge", about, ("", (), share))
        for name in ("calls", "queries"):
            about = f"Of the model: {name}."
            yield family(
                f"model_{name}_total", "counter", about, ("", (), float(self._batches[name]))
            )
        reloads = [
            ("", (("result", name),), float(self._reloads[name])) for name in ("loaded", "failed")
        ]
        yield family("reloads_total", "counter", "Reloads of the index.", *reloads)
        yield family("index_items", "gauge", "Items of the index.", ("", (), float(items)))


def _of_drift(drift: DriftSummary | None) -> Iterable[MetricFamily]:
    about, watched = "1 where drift is watched.", (("", (), float(drift is not None)),)
    yield MetricFamily("laplace_metric_monitor_watched", "gauge", about, watched)
    if drift is None:
        return
    signals = {name: (("signal", name),) for name in drift.signals}
    alarms = {name: float(name in drift.alarmed) for name in drift.signals}
    yield _by_signal("alarm", "1 after a drift alarm.", signals, alarms)
    about = "log10 of the odds against no drift since the beginning."
    yield _by_signal("evidence_log10", about, signals, drift.evidence)
    numbers = {
        "queries": (drift.queries, "Queries since it began."),
        "windows": (drift.windows, "Full windows."),
        "drifted_windows": (drift.drifted, "Windows that differ from the reference."),
    }
    for name, (value, about) in numbers.items():
        samples = (("", (), float(value)),)
        yield MetricFamily(f"laplace_metric_monitor_{name}", "gauge", about, samples)


def _by_signal(
    name: str, about: str, labels: Mapping[str, Labels], values: Mapping[str, float]
) -> MetricFamily:
    samples = tuple(("", labels[signal], values[signal]) for signal in labels)
    return MetricFamily(f"laplace_metric_monitor_{name}", "gauge", about, samples)
