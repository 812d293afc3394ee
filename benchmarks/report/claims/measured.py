"""Our measurements as the records have them, for the claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import betaincinv

from benchmarks.engine.statistics import spearman
from benchmarks.records import RESULTS, rows_of
from benchmarks.report.claims.criterion import Ours
from benchmarks.report.papers import interval
from benchmarks.report.three_numbers import MATCH

Row = dict[str, Any]
Read = Callable[[], list[float]]
"""Numbers of a record, seed by seed."""


def of_papers(quantity: str) -> Row:
    """Return the row of ``papers.json`` with this name."""
    rows = rows_of("papers")
    return next(row for row in rows if row["quantity"] == quantity)


def exact(quantity: str, *, of: bool = False) -> Ours:
    """Return a number of ``papers.json``; with ``of`` it is shown as a share: 14 of 22."""
    row = of_papers(quantity)
    return Ours.exact(row["value"], f"{row['value']} of {row['of']}" if of else "")


def three_seeds(backbone: str, method: str, metric: str) -> Ours:
    """Return the best setting with three seeds of URL's published runs, by R-AUROC."""
    rows = [row for row in rows_of("papers") if row["quantity"] == "three seeds"]
    own = [row for row in rows if (row["backbone"], row["method"]) == (backbone, method)]
    return Ours.exact(max(own, key=lambda row: row["r_auroc"])[metric])


def small(protocol: str, task: str, method: str, metric: str) -> list[float]:
    """Return a metric of the comparison, seed by seed."""
    rows = rows_of(protocol, RESULTS / "small")
    own = [row for row in rows if (row["task"], row["method"]) == (task, method)]
    return [row["metrics"][metric]["value"] for row in sorted(own, key=lambda row: row["seed"])]


def seeds(read: Read) -> Ours:
    """Return mean and interval over the seeds."""
    return Ours.of_seeds(read())


def less(first: Read, second: Read) -> Ours:
    """Return the differences of two numbers, seed by seed."""
    return Ours.of_seeds([a - b for a, b in zip(first(), second(), strict=True)])


def means(protocol: str, task: str, metric: str) -> dict[str, float]:
    """Return the mean of each method that does not read the labels of the gallery."""
    rows = rows_of(protocol, RESULTS / "small")
    names = dict.fromkeys(row["method"] for row in rows if row["task"] == task)
    return {
        name: fmean(values)
        for name in names
        if name != MATCH and (values := there(protocol, task, name, metric))
    }


def there(protocol: str, task: str, method: str, metric: str) -> list[float]:
    """Return a metric seed by seed, without those that lack it."""
    rows = rows_of(protocol, RESULTS / "small")
    found = [
        row["metrics"].get(metric, {}).get("value")
        for row in rows
        if (row["task"], row["method"]) == (task, method)
    ]
    return [value for value in found if value is not None]


def over_methods(first: dict[str, float], second: dict[str, float]) -> Ours:
    """Return the rank correlation over the methods of both, with resampled methods."""
    names = [name for name in first if name in second]
    x, y = (np.array([of[name] for name in names]) for of in (first, second))
    return Ours.between(spearman(x, y), *interval(x, y))


def share(hits: int, n: int) -> Ours:
    """Return a share with its exact 95 % interval (Clopper-Pearson), shown as ``hits of n``."""
    low = float(betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
    return Ours(hits / n, 0.0, low, high, f"{hits} of {n}")


def of_rows(record: str, path: Sequence[str], **wanted: Any) -> list[float]:
    """Return the number at ``path`` in the rows of a record that have these fields, by seed."""
    rows = [
        row for row in rows_of(record) if all(row[key] == value for key, value in wanted.items())
    ]
    order = "fold" if "fold" in rows[0] else "seed"
    return [_at(row, path) for row in sorted(rows, key=lambda row: row[order])]


def _at(row: Any, path: Sequence[str]) -> float:
    for key in path:
        row = row[key]
    return float(row)


def reader(record: str, *path: str, **wanted: Any) -> Read:
    """Return ``of_rows`` with its arguments."""
    return partial(of_rows, record, path, **wanted)


def minus(read: Read) -> Read:
    """Return the numbers with the other sign: uncertainty for certainty."""
    return lambda: [-value for value in read()]
