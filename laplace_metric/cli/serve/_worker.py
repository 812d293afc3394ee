"""One thread that calls the model: queries that wait for it go in together, where that is quick.

With a small network most of a call is the same for 1 and for 16 queries. With a deep one on a CPU,
16 take as long as 16 calls, or longer, and all wait for the last. So as many go in together as

    n = min(batch, BUDGET / s),    s: seconds a query of the last call

and one alone if s is more than the budget.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from laplace_metric.cli.serve._guard import STOPPING, RequestRefused

BUDGET = 0.05
"""Seconds that a call of several queries should take at most."""


@dataclass(frozen=True)
class Job:
    """A batch of one that waits for its result.

    Parameters
    ----------
    key : hashable
        Jobs with one key may go in together.
    inputs : Tensor [1, ...] or list of one str
    run : callable
        Inputs of B jobs -> a result for each of them.
    """

    key: Hashable
    inputs: Any
    run: Callable[[Any], Sequence[Any]]
    result: Future[Any] = field(default_factory=Future)


class Worker:
    """Runs jobs in the order in which they came, at most ``batch`` with one key in a call.

    It never waits for a batch to fill: what has come while the model was busy goes in together.

    Parameters
    ----------
    batch : int

    Examples
    --------
    >>> worker = Worker(batch=4)
    >>> worker.submit(Job("double", ["a"], lambda texts: [2 * text for text in texts])).result()
    'aa'
    >>> worker.close()
    """

    def __init__(self, batch: int) -> None:
        self.batch, self._together = batch, 1
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closing, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Any]:
        """Queue it.

        Raises
        ------
        RequestRefused
            After ``close``.
        """
        with self._closing:
            if self._closed:
                raise RequestRefused("the server is stopping: ask again later.", STOPPING)
            self._jobs.put(job)
        return job.result

    def close(self) -> None:
        """Run what is queued, then end."""
        with self._closing:
            if not self._closed:
                self._jobs.put(None)
            self._closed = True
        self._thread.join()

    def _work(self) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._waiting()
            for group in groups(jobs):
                begin = time.perf_counter()
                run_together(group)
                seconds = (time.perf_counter() - begin) / len(group)
                self._together = max(1, min(self.batch, int(BUDGET / max(seconds, 1e-9))))

    def _waiting(self) -> tuple[list[Job], bool]:
        """Return the jobs that have arrived, at least one; and whether more may come."""
        taken: list[Job] = []
        while len(taken) < self._together:
            try:
                job = self._jobs.get(block=not taken)
            except queue.Empty:
                break
            if job is None:
                return taken, False
            taken.append(job)
        return taken, True


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs with one key together, in the order of the first of each."""
    found: dict[Hashable, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.key, []).append(job)
    return list(found.values())


def run_together(jobs: Sequence[Job]) -> None:
    """One call for all; if it fails, each alone, so that a bad query fails for itself."""
    try:
        results = jobs[0].run(_joined([job.inputs for job in jobs]))
    except Exception as error:
        if len(jobs) == 1:
            _settle(jobs[0], None, error)
        else:
            for job in jobs:
                run_together([job])
        return
    for job, result in zip(jobs, results, strict=True):
        _settle(job, result, None)


def _settle(job: Job, result: Any, error: Exception | None) -> None:
    if not job.result.set_running_or_notify_cancel():
        return  # the client has gone
    if error is None:
        job.result.set_result(result)
    else:
        job.result.set_exception(error)


def _joined(inputs: Sequence[Any]) -> Any:
    if isinstance(inputs[0], torch.Tensor):
        return torch.cat(list(inputs))
    return [text for texts in inputs for text in texts]
