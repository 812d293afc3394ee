"""The benchmark of drift at its smoke size; its committed numbers keep the promised rates."""

from __future__ import annotations

import pytest
import torch

from benchmarks.records import read_record
from benchmarks.registry import main
from benchmarks.retrieval import drift, tables
from benchmarks.retrieval.drift import CHANGES, NAMES
from benchmarks.retrieval.drift_figure import stream_figure
from benchmarks.sizes import DRIFT


@pytest.fixture(scope="module")
def committed():
    return read_record("drift")


def test_smoke(real_data, tmp_path, capsys):
    words = ["--data", str(real_data), "--cache", str(tmp_path), "--size", "smoke"]
    assert main(["retrieval", "--pieces", "drift", *words]) == 0
    record = read_record("drift", tmp_path)
    assert (tmp_path / "drift.png").stat().st_size > 5_000
    assert len(record["example"]["reports"]) == DRIFT["smoke"].test // 2 // DRIFT["smoke"].window
    assert [row["stream"] for row in record["quiet"]] == [*drift.LAWS, "fashion-mnist"]
    assert [row["change"] for row in record["delays"]] == list(CHANGES)
    assert tables.false_alarms(record).count("\n") == 5
    assert tables.delays(record).count("\n") == 5
    assert "kmnist" in capsys.readouterr().out


def test_a_drifting_stream_is_quiet_first():
    size = DRIFT["smoke"]
    found = {name: {n: torch.rand(size.test) for n in NAMES} for name in ("fashion-mnist", "mnist")}
    found["mnist"] = {n: x + 5 for n, x in found["mnist"].items()}
    monitor = drift.drifting(found, "mnist", 1.0, 0, size)
    assert size.quiet < monitor.alarms[0].at < size.quiet + 20
    assert monitor.n == size.test // 2


def test_the_figure_comes_from_the_record_alone(committed):
    shown = committed["example"]
    figure = stream_figure(shown)
    crossings = [line for line in figure.axes[-1].lines if line.get_marker() == "*"]
    assert [line.get_xdata()[0] for line in crossings] == [a["at"] for a in shown["alarms"]]
    assert any(list(line.get_xdata()) == [shown["after"]] * 2 for line in figure.axes[0].lines)


def test_missing_values_are_the_largest():
    assert drift.middle([3, 1], 4) is None
    assert drift.middle([3, 1, 2], 4) == 2.5
    assert drift.middle([], 0) is None


def test_committed_rates_hold(committed):
    for row in committed["quiet"]:
        assert row["alarm_interval"][0] <= row["rate"]
        assert row["moved"] <= row["rate"] + 2 * row["moved_error"]
    for rate in (0.01, 0.1):
        rows = [row for row in committed["quiet"] if row["rate"] == rate]
        assert sum(row["streams"] for row in rows) >= 2_000
        assert sum(row["alarms"] for row in rows) <= rate * sum(row["streams"] for row in rows)


def test_committed_drifts_are_told(committed):
    rows = {(row["change"], row["share"]): row for row in committed["delays"]}
    assert all(rows["kmnist", share]["alarms"] == 20 for share in (0.2, 0.5))
    assert rows["kmnist", 0.5]["delay"] < rows["kmnist", 0.1]["delay"]
    assert sum(row["early"] for row in rows.values()) <= 0.01 * 20 * len(rows) + 3
