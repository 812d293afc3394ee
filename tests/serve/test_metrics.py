"""What Prometheus reads, parsed by its own client; and the drift on it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli.serve._metrics import (
    BLOCK,
    DriftWatch,
    ServerMetrics,
    calibration_reference,
)
from laplace_metric.errors import InputError
from laplace_metric.monitor import Monitor


def parsed(text: str) -> dict[str, object]:
    parser = pytest.importorskip("prometheus_client.parser")
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def sample(family, name: str, **labels: str) -> float:
    [found] = [s.value for s in family.samples if s.name == name and s.labels == labels]
    return found


def test_the_page_is_what_prometheus_reads():
    metrics = ServerMetrics()
    for seconds, status in [(0.001, 200), (0.0011, 200), (0.3, 400), (99.0, 200)]:
        metrics.request("/search", status, seconds)
    for accepted, unknown in [(True, False), (False, True), (False, True), (None, None)]:
        metrics.answer(accepted=accepted, unknown=unknown)
    metrics.batch(3)
    metrics.batch(1)
    families = parsed(metrics.text(7, None))
    requests, latency = (
        families["laplace_metric_requests"],
        families["laplace_metric_request_seconds"],
    )
    name = "laplace_metric_requests_total"
    assert sample(requests, name, path="/search", status="200") == 3
    assert sample(requests, name, path="/search", status="400") == 1
    bucket = "laplace_metric_request_seconds_bucket"
    for end, count in {"0.001": 1, "0.0025": 2, "0.25": 2, "0.5": 3, "10.0": 3, "+Inf": 4}.items():
        assert sample(latency, bucket, path="/search", le=end) == count
    assert sample(latency, "laplace_metric_request_seconds_count", path="/search") == 4
    total = sample(latency, "laplace_metric_request_seconds_sum", path="/search")
    assert total == pytest.approx(99.3021)
    decided = families["laplace_metric_decisions"]
    for word, count in {"answer": 1, "abstain": 2, "none": 1}.items():
        assert sample(decided, "laplace_metric_decisions_total", decision=word) == count
    assert sample(families["laplace_metric_unknown"], "laplace_metric_unknown_total") == 2
    share = sample(families["laplace_metric_unknown_share"], "laplace_metric_unknown_share")
    assert share == pytest.approx(2 / 3)
    assert sample(families["laplace_metric_index_items"], "laplace_metric_index_items") == 7
    assert (
        sample(families["laplace_metric_model_queries"], "laplace_metric_model_queries_total") == 4
    )


def test_the_share_of_unknown_is_of_the_last_thousand():
    metrics = ServerMetrics()
    for i in range(2000):
        metrics.answer(accepted=None, unknown=i < 1500)
    assert "unknown_share 0.5\n" in metrics.text(1, None)
    assert "unknown_total 1500.0" in metrics.text(1, None)


def test_drift_is_what_a_monitor_says():
    g = torch.Generator().manual_seed(0)
    reference = {"match probability": torch.rand(400, generator=g)}
    stream = torch.cat([torch.rand(300, generator=g), 0.5 * torch.rand(200, generator=g)])
    monitor = Monitor(reference, window=100)
    monitor.streams["match probability"].martingale.threshold += np.log(2)
    monitor.update({"match probability": stream})
    watch = DriftWatch(reference, window=100, false_alarms=0.01)
    for value in stream:
        watch.add({"match probability": value[None], "uncertainty": value[None]})
    summary = watch.summary()
    assert summary.queries == monitor.n == 500
    assert summary.windows == len(monitor.reports) == 5
    assert summary.drifted == sum(bool(report.drifted) for report in monitor.reports) > 0
    assert summary.alarms == monitor.alarms
    assert [alarm.name for alarm in summary.alarms] == ["match probability"]
    assert str(summary).startswith("Drift. ALARM at query")
    evidence = monitor.streams["match probability"].martingale.log_value / np.log(10)
    assert summary.evidence["match probability"] == pytest.approx(evidence, rel=1e-6)
    families = parsed(ServerMetrics().text(1, summary))
    name = "laplace_metric_monitor_alarm"
    assert sample(families[name], name, signal="match probability") == 1
    name = "laplace_metric_monitor_evidence_log10"
    assert sample(families[name], name, signal="match probability") == pytest.approx(evidence)


def test_quiet_queries_raise_nothing_and_a_new_period_begins():
    values = torch.rand(900, generator=torch.Generator().manual_seed(1))
    watch = DriftWatch({"u": values[:300]}, window=100, false_alarms=0.01, period=2 * BLOCK)
    for part in values[300:].split(BLOCK):
        watch.add({"u": part})
    summary = watch.summary()
    assert not summary.alarms
    assert (summary.queries, summary.windows) == (600, 4)  # a period has one full window
    assert str(summary).startswith("No drift in 600 queries")


def test_an_alarm_outlives_the_monitor_that_raised_it():
    values = torch.rand(300, generator=torch.Generator().manual_seed(1))
    watch = DriftWatch({"u": values}, window=100, false_alarms=0.01, period=200)
    for shift in (2.0, 0.0, 0.0, 2.0):
        watch.add({"u": values[:200] + shift})
    summary = watch.summary()
    assert [alarm.name for alarm in summary.alarms] == ["u", "u"]
    assert [alarm.at > 600 for alarm in summary.alarms] == [False, True]
    assert [alarm.since > 600 for alarm in summary.alarms] == [False, True]
    assert (summary.queries, summary.windows, summary.drifted) == (800, 8, 4)


def test_later_monitors_ask_for_more_evidence():
    """Their chances of a false alarm sum to what was asked for."""
    watch = DriftWatch({"u": torch.rand(50)}, window=30, false_alarms=0.05, period=1)
    chances = []
    for _ in range(40):
        chances.append(np.exp(-watch._monitor.streams["u"].martingale.threshold))
        watch.add({"u": torch.rand(BLOCK)})
        watch.add({"u": torch.rand(BLOCK)})
    assert chances[0] == pytest.approx(0.025)
    assert sum(chances) < 0.05


def test_threads_lose_no_query():
    watch = DriftWatch({"u": torch.rand(100)}, window=50, false_alarms=0.01)
    threads = [
        threading.Thread(target=lambda: [watch.add({"u": torch.rand(1)}) for _ in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch.summary().queries == 1600


def test_the_reference_is_the_nearest_neighbour_of_held_out_queries():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(500) % 5
    x = torch.nn.functional.one_hot(y, 6) + 0.6 * torch.randn(500, 6, generator=g)
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    index = embedder.index(x[100:300], y[100:300], progress=False)
    calibration = index.calibrate(x[300:], y[300:])
    nearest = index.search(x[300:], 2).match_probability
    found = calibration_reference(calibration)["match probability"]
    gaps = [(found[:, None] - column).abs().amin(1) for column in nearest.T]
    assert float(gaps[0].max()) < 1e-6
    assert len(found) == 100
    assert float(gaps[1].max()) > 1e-3  # those of the second neighbour are others
    assert calibration_reference(None) == {}
    crossed = embedder.cross_index(x[:100], y[:100], progress=False).calibration
    with pytest.raises(InputError, match="cross-fitting"):
        calibration_reference(crossed)
