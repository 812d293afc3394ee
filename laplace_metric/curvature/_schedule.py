"""A schedule: a fit as a sequence of passes, and how it is run in this process.

A schedule is a generator: it yields a pass, is sent the finished statistics of all points, and
returns the curvature. It does not know who reads the points, in how many places, and how the parts
are merged: ``execute`` reads one source in this process; ``distributed`` and ``scale`` read shards,
whose merged statistics are audited.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from torch import Tensor

from laplace_metric._utils.progress import tqdm
from laplace_metric.curvature._passes import Pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature._terms import CurvatureTerm
from laplace_metric.models._store import FeatureStore

T = TypeVar("T")
PassSchedule = Generator[Pass, Statistics, T]
"""Yields passes, is sent their finished statistics, returns a T."""


def execute(schedule: PassSchedule[T], source: FeatureStore, *, progress: bool = False) -> T:
    """Run a schedule on one source in this process; a pass of over two seconds shows a bar."""
    finished: Any = None
    n = len(source)
    while True:
        task, result = next_pass(schedule, finished)
        if task is None:
            return result  # type: ignore[return-value]
        with tqdm(total=n, desc=task.name, delay=2, disable=not progress) as bar:
            finished = task.finish(task.read(source, bar.update if progress else None))


def next_pass(
    schedule: PassSchedule[T], finished: Statistics | None
) -> tuple[Pass | None, T | None]:
    """Return the next pass and None, or None and the result of the schedule."""
    try:
        return schedule.send(finished), None  # type: ignore[arg-type]
    except StopIteration as stop:
        return None, stop.value


Totals = Callable[[CurvatureTerm], PassSchedule[list[Tensor]]]
"""Passes that return the totals of a term over some pairs."""
