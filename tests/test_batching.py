"""Jobs of many threads: which go in together, and what a bad one does to the others."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from laplace_metric._utils import batching
from laplace_metric._utils.batching import Job, Worker


def held(worker: Worker, gate: threading.Event) -> None:
    """The worker is in a call until the gate opens, and knows that calls are quick."""
    gate.set()
    worker.submit(waits(gate)).result(30)
    gate.clear()
    worker.submit(waits(gate))
    while worker._jobs:
        time.sleep(0.01)


def waits(gate: threading.Event, row: str = "x") -> Job:
    return Job("wait", lambda texts: [gate.wait(30) for _ in texts], [row])


def test_a_bad_job_fails_for_itself(monkeypatch):
    monkeypatch.setattr(batching, "BUDGET", 1e9)

    def halves(x: torch.Tensor) -> list[float]:
        if bool((x < 0).any()):
            raise ValueError("negative")
        return (x[:, 0] / 2).tolist()

    worker, gate = Worker(batch=8, waiting=9), threading.Event()
    held(worker, gate)
    jobs = [Job("half", halves, torch.tensor(rows)) for rows in ([[2.0], [4.0]], [[-1.0]], [[6.0]])]
    results = [worker.submit(job) for job in jobs]
    gate.set()
    assert [results[0].result(30), results[2].result(30)] == [[1.0, 2.0], [3.0]]
    with pytest.raises(ValueError, match="negative"):
        results[1].result(30)


def test_what_waits_goes_in_together_but_no_more_than_a_batch(monkeypatch):
    monkeypatch.setattr(batching, "BUDGET", 1e9)
    sizes, worker, gate = [], Worker(batch=4, waiting=99), threading.Event()
    held(worker, gate)

    def run(texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        return [text.upper() for text in texts]

    rows = [["a"], ["b"], ["c", "d"], ["e"] * 7, ["f"], ["g"], ["h"]]
    results = [worker.submit(Job("k", run, some)) for some in rows]
    gate.set()
    assert [one.result(30) for one in results] == [[t.upper() for t in some] for some in rows]
    assert sizes == [4, 7, 3]  # a job of more rows than a batch runs alone


def test_jobs_of_other_keys_do_not_go_in_together(monkeypatch):
    monkeypatch.setattr(batching, "BUDGET", 1e9)
    sizes, worker, gate = [], Worker(batch=8, waiting=99), threading.Event()
    held(worker, gate)

    def run(texts: list[str]) -> list[str]:
        sizes.append(texts)
        return texts

    results = [worker.submit(Job(key, run, [key])) for key in "abab"]
    gate.set()
    assert [one.result(30) for one in results] == [["a"], ["b"], ["a"], ["b"]]
    assert sorted(sizes) == [["a", "a"], ["b", "b"]]


def test_rows_of_a_slow_call_go_in_one_by_one(monkeypatch):
    monkeypatch.setattr(batching, "BUDGET", 0.01)
    sizes, worker = [], Worker(batch=8, waiting=99)

    def run(texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        time.sleep(0.02 * len(texts))
        return texts

    results = [worker.submit(Job("k", run, [str(row)])) for row in range(10)]
    assert [one.result(30) for one in results] == [[str(row)] for row in range(10)]
    assert sizes == [1] * 10


def test_a_full_queue_is_seen():
    worker, gate = Worker(batch=1, waiting=2), threading.Event()
    running = worker.submit(waits(gate))
    while worker._jobs:
        time.sleep(0.01)
    waiting = [worker.submit(waits(gate)) for _ in range(2)]
    assert worker.full
    gate.set()
    assert [one.result(30) for one in (running, *waiting)] == [[True]] * 3
    assert not worker.full


def test_a_call_that_gives_too_few_results_is_an_error():
    worker = Worker(batch=1, waiting=2)
    with pytest.raises(RuntimeError, match="0 results.*1 rows"):
        worker.submit(Job("k", lambda texts: [], ["a"])).result(30)
