"""Reading a collected record: means over seeds, what may be bold, which methods there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.report.glossary import Metric, metric

Record = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """A metric of a method over its seeds; NaN where no seed defines it.

    ``error`` is the standard error of two or more seeds, ``low`` and ``high`` the bootstrap
    interval of a single one; each NaN otherwise.
    """

    mean: float
    error: float
    low: float
    high: float
    seeds: int


def number(value: Any) -> float:
    """A float; NaN for null and for whatever is missing."""
    return math.nan if value is None else float(value)


def known(value: Any) -> bool:
    """Whether a value is a number at all."""
    return value is not None and math.isfinite(value)


def summary(rows: Sequence[Row], key: str) -> Summary:
    """Of the seeds that define the metric."""
    cells = [row["metrics"].get(key, {}) for row in rows]
    cells = [cell for cell in cells if known(cell.get("value"))]
    if len(cells) == 1:
        (cell,) = cells
        value, low, high = (number(cell.get(name)) for name in ("value", "low", "high"))
        return Summary(value, math.nan, low, high, 1)
    if not cells:
        return Summary(math.nan, math.nan, math.nan, math.nan, 0)
    over = mean_and_standard_error([cell["value"] for cell in cells])
    return Summary(over.mean, over.standard_error, math.nan, math.nan, len(cells))


def mean_of(rows: Iterable[Row], read: Callable[[Row], Any]) -> float:
    """Mean of a number over rows; NaN where none has it."""
    finite = [value for value in (read(row) for row in rows) if known(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def described(key: str) -> Metric:
    """The metric of a key, or its bare name where nothing is known about it."""
    try:
        return metric(key)
    except ValueError:  # no known beginning
        return Metric(key, 0, "")


@dataclass(frozen=True)
class Part:
    """One task of a record."""

    record: Record
    task: str

    @property
    def rows(self) -> list[Row]:
        """Its runs."""
        return [row for row in self.record["rows"] if row["task"] == self.task]

    @property
    def methods(self) -> dict[str, list[Row]]:
        """Method -> its runs, a seed each."""
        of: dict[str, list[Row]] = {}
        for row in self.rows:
            of.setdefault(row["method"], []).append(row)
        return of

    @property
    def metrics(self) -> list[str]:
        """Keys, as they first appear."""
        return list(dict.fromkeys(key for row in self.rows for key in row["metrics"]))

    def bold(self, key: str) -> list[str]:
        """Methods that the data cannot tell from the best; none if that is more than half."""
        near = self.record["comparisons"].get(self.task, {}).get(key, {}).get("leaders", [])
        rivals = [name for name, rows in self.methods.items() if known(summary(rows, key).mean)]
        return near if 2 * len(near) <= len(rivals) else []

    def differences(self, key: str) -> dict[str, tuple[float, float, float]]:
        """Method -> what Laplace has more of the metric, low, high."""
        against = (
            self.record["comparisons"].get(self.task, {}).get(key, {}).get("laplace minus", {})
        )
        ends = {
            name: tuple(number(one.get(end)) for end in ("difference", "low", "high"))
            for name, one in against.items()
        }
        return {name: (a, b, c) for name, (a, b, c) in ends.items() if known(a + b + c)}


def parts(record: Record) -> list[Part]:
    """The tasks of a record."""
    return [Part(record, task) for task in dict.fromkeys(row["task"] for row in record["rows"])]
