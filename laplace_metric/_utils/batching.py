"""Calls of a model from many threads: one thread runs them, those that wait together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

BUDGET = 0.05
"""Seconds that a call of several rows should take at most. A deep network on a CPU takes as long
for 16 rows together as for each alone, and then all would wait for the last."""


@dataclass(frozen=True)
class Job:
    """Rows that wait for a call.

    Parameters
    ----------
    key : hashable
        Key of the call: jobs of one key may enter one call.
    call : callable
        Function of the inputs of R rows, a tensor [R, ...] or a list, that returns R results.
    inputs : Tensor or list
        Rows of this job.
    result : Future
        Future of the list of results, one a row. Default: a new one.
    """

    key: Hashable
    call: Callable[[Any], Sequence[Any]]
    inputs: Any
    result: Future[list[Any]] = field(default_factory=Future)


class Worker:
    """Runs jobs in the order in which they came, in one thread.

    It never waits for a batch to fill: what has come while a call ran enters the next one together,
    as many rows as fit into ``BUDGET`` by the time of the last call. A call that fails is run again
    for each job alone, so that a bad job fails for itself.

    Parameters
    ----------
    batch : int
        Most rows of several jobs in one call; a job of more rows runs alone.
    waiting : int
        Most jobs that wait.

    Examples
    --------
    >>> worker = Worker(batch=4, waiting=8)
    >>> worker.submit(Job("double", lambda texts: [2 * text for text in texts], ["a"])).result()
    ['aa']
    """

    def __init__(self, batch: int, waiting: int) -> None:
        self.batch, self.waiting, self._together = batch, waiting, 1
        self._jobs, self._lock = deque[Job](), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "model")

    @property
    def full(self) -> bool:
        """True if as many jobs wait as may."""
        return len(self._jobs) >= self.waiting

    def submit(self, job: Job) -> Future[list[Any]]:
        """Queue a job, however full the queue is; return its result to come."""
        with self._lock:  # a turn of the thread for each job; it may find that its job was taken
            self._jobs.append(job)
            self._thread.submit(self._turn)
        return job.result

    def _turn(self) -> None:
        groups: dict[Hashable, list[Job]] = {}
        rows = 0
        with self._lock:
            while self._jobs and (not rows or rows + len(self._jobs[0].inputs) <= self._together):
                job = self._jobs.popleft()
                rows += len(job.inputs)
                groups.setdefault(job.key, []).append(job)
        for jobs in groups.values():
            begin = time.perf_counter()
            run_together(jobs)
            seconds = (time.perf_counter() - begin) / sum(len(job.inputs) for job in jobs)
            self._together = max(1, min(self.batch, int(BUDGET / max(seconds, 1e-9))))


def run_together(jobs: Sequence[Job]) -> None:
    """Run one call for all jobs; if it fails, one for each."""
    inputs = [job.inputs for job in jobs]
    try:
        together = torch.cat(inputs) if isinstance(inputs[0], Tensor) else list(chain(*inputs))
        found = jobs[0].call(together)
        if len(found) != sum(map(len, inputs)):
            raise RuntimeError(f"{len(found)} results for {sum(map(len, inputs))} rows")
        rows = iter(found)
        results = [list(islice(rows, len(some))) for some in inputs]
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].result.set_exception(error)
            return
        for job in jobs:
            run_together([job])
        return
    for job, result in zip(jobs, results, strict=True):
        job.result.set_result(result)
