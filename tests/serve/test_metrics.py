"""What Prometheus reads, parsed by its own client; and the drift on it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli.serve._metrics import DriftWatch, ServerMetrics, calibration_reference
from laplace_metric.errors import InputError
from laplace_metric.monitor import Monitor


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Name without its beginning, and values of the labels -> value."""
    parser = pytest.importorskip("prometheus_client.parser")
    return {
        (sample.name[15:], *(sample.labels[x] for x in sorted(sample.labels)[::-1])): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_is_what_prometheus_reads():
    metrics = ServerMetrics()
    for seconds, status in [(0.001, 200), (0.0011, 200), (0.3, 400), (99.0, 200)]:
        metrics.request("/search", status, seconds)
    for accepted, unknown in [(True, False), (False, True), (False, True), (None, None)]:
        metrics.answer(accepted=accepted, unknown=unknown)
    metrics.batch(3)
    found = samples(metrics.text(7, None))
    assert found["requests_total", "200", "/search"] == 3
    for end, count in {"0.001": 1, "0.0025": 2, "0.5": 3, "10.0": 3, "+Inf": 4}.items():
        assert found["request_seconds_bucket", "/search", end] == count
    assert found["request_seconds_sum", "/search"] == pytest.approx(99.3021)
    for word, count in {"answer": 1, "abstain": 2, "none": 1}.items():
        assert found["decisions_total", word] == count
    assert found["unknown_total",] == 2
    assert found["unknown_share",] == pytest.approx(2 / 3)
    assert (found["index_items",], found["model_queries_total",]) == (7, 3)
    assert (found["monitor_watched",], found["monitor_queries",]) == (0, 0)


def test_the_share_of_unknown_is_of_the_last_thousand():
    metrics = ServerMetrics()
    for i in range(2000):
        metrics.answer(accepted=None, unknown=i < 1500)
    assert "unknown_share 0.5\n" in metrics.text(1, None)


def test_drift_is_what_a_monitor_says():
    g, name = torch.Generator().manual_seed(0), "match probability"
    reference = {name: torch.rand(400, generator=g)}
    stream = torch.cat([torch.rand(300, generator=g), 0.5 * torch.rand(200, generator=g)])
    monitor = Monitor(reference, window=100)
    monitor.streams[name].martingale.threshold += np.log(2)
    monitor.update({name: stream})
    watch = DriftWatch(reference, window=100, false_alarms=0.01)
    for value in stream[:300]:
        watch.add({name: value[None], "uncertainty": value[None]})
    assert str(watch).startswith("No drift in 300 queries (match probability). Last window, quer")
    watch.add({name: stream[300:]})
    assert watch.alarms == monitor.alarms
    assert str(watch).startswith("Drift. ALARM at query")
    found = samples(ServerMetrics().text(1, watch))
    evidence = monitor.streams[name].martingale.log_value / np.log(10)
    assert found["monitor_alarm", name] == found["monitor_watched",] == 1
    assert found["monitor_evidence_log10", name] == pytest.approx(evidence)
    assert (found["monitor_queries",], found["monitor_windows",]) == (500, 5)
    drifted = sum(bool(report.drifted) for report in monitor.reports)
    assert found["monitor_drifted_windows",] == drifted > 0


def test_an_alarm_outlives_the_monitor_that_raised_it():
    values = torch.rand(300, generator=torch.Generator().manual_seed(1))
    watch = DriftWatch({"u": values}, window=100, false_alarms=0.01, period=200)
    for shift in (2.0, 0.0, 0.0, 2.0):
        watch.add({"u": values[:200] + shift})
    assert [alarm.name for alarm in watch.alarms] == ["u", "u"]
    assert [alarm.at > 600 for alarm in watch.alarms] == [False, True]
    assert [alarm.since > 600 for alarm in watch.alarms] == [False, True]
    assert (watch.queries, watch.windows, watch.drifted) == (800, 8, 4)


def test_later_monitors_ask_for_more_evidence():
    """Their chances of a false alarm sum to what was asked for."""
    watch = DriftWatch({"u": torch.rand(50)}, window=30, false_alarms=0.05, period=1)
    chances = []
    for _ in range(40):
        chances.append(np.exp(-watch._monitor.streams["u"].martingale.threshold))
        watch.add({"u": torch.rand(2)})
        watch.add({"u": torch.rand(2)})
    assert chances[0] == pytest.approx(0.025)
    assert sum(chances) < 0.05


def test_threads_lose_no_query():
    watch = DriftWatch({"u": torch.rand(100)}, window=50, false_alarms=0.01)

    def feed() -> None:
        for _ in range(200):
            watch.add({"u": torch.rand(1)})

    threads = [threading.Thread(target=feed) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch.queries == 1600


def test_the_reference_is_the_nearest_neighbour_of_held_out_queries():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(500) % 5
    x = torch.nn.functional.one_hot(y, 6) + 0.6 * torch.randn(500, 6, generator=g)
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    index = embedder.index(x[100:300], y[100:300], progress=False)
    calibration = index.calibrate(x[300:], y[300:], cross_fit=0)
    nearest = index.search(x[300:], 2).match_probability
    found = calibration_reference(calibration)["match probability"]
    gaps = [(found[:, None] - column).abs().amin(1) for column in nearest.T]
    assert float(gaps[0].max()) < 1e-6
    assert len(found) == 100
    assert float(gaps[1].max()) > 1e-3  # those of the second neighbour are others
    epistemic = calibration_reference(calibration)["epistemic"]
    expected = index.search(x[300:], 1).epistemic.double()
    torch.testing.assert_close(
        epistemic.sort().values, expected.sort().values, rtol=1e-5, atol=1e-5
    )
    some = torch.where(y[300:] == 4, 9, y[300:])  # not of the index
    by_halves = index.calibrate(x[300:], some, cross_fit=0)
    assert list(calibration_reference(by_halves)) == ["match probability"]
    every = index.calibrate(x[300:], y[300:])
    assert list(calibration_reference(every)) == ["epistemic"]
    with pytest.raises(InputError, match="fewer than 1,000 queries"):
        calibration_reference(index.calibrate(x[300:], some))
    crossed = embedder.cross_index(x[:100], y[:100], progress=False).calibration
    with pytest.raises(InputError, match="cross-fitting"):
        calibration_reference(crossed)
