"""Tables of the drift monitor, from ``results/drift.json``."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import markdown
from benchmarks.records import read_record

NAME = "drift"
Row = dict[str, Any]
Record = dict[str, Any]


def quiet(record: Record | None = None) -> str:
    """False alarms without drift."""
    header = ["stream without drift", "rate asked", "streams", "ever an alarm", "95% interval"]
    return markdown([*header, "windows moved"], [_quiet(row) for row in _of(record)["quiet"]])


def _quiet(row: Row) -> list[str]:
    low, high = row["alarm_interval"]
    moved = f"{row['moved']:.1%} ± {row['moved_error']:.1%}"
    numbers = [f"{row['rate']:.0%}", f"{row['streams']:,}", f"{row['alarm_rate']:.1%}"]
    return [row["stream"], *numbers, f"{low:.1%} to {high:.1%}", moved]


def delays(record: Record | None = None) -> str:
    """Queries until it is told, and the share of windows that each test tells."""
    found = _of(record)
    pairs = zip(found["delays"], found["power"], strict=True)
    header = ["queries that change", "streams told", "queries till the alarm", "start found within",
              "till a window moved", "windows told", "by Kolmogorov-Smirnov alone"]  # fmt: skip
    return markdown(header, [_delay(row, power) for row, power in pairs])


def _delay(row: Row, power: Row) -> list[str]:
    assert (row["change"], row["share"]) == (power["change"], power["share"])
    return [
        f"{row['share']:.0%} {row['change']}",
        f"{row['alarms']} of {row['streams']}",
        *(_count(row[key]) for key in ("delay", "since_error", "window_delay")),
        *(f"{power[key]:.0%}" for key in ("three", "alone")),
    ]


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _of(record: Record | None) -> Record:
    return read_record(NAME) if record is None else record
