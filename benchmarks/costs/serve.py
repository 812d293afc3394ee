"""A load test of ``laplace-metric serve``: ``benchmarks costs --pieces serve`` (extra ``serve``).

Four problems, made by the commands of the package (``served_problems``): FashionMNIST with a small
network, of which HTTP and the search are most of the work; photographs of birds and CIFAR-10 with
EfficientNet-Lite0 at 224 pixels, of which the network is; texts with MiniLM, which come in all
lengths. The time that a call of several queries may take was chosen on the birds. The server is a
process of its own with one thread for torch; clients are threads of this one, each on a connection
that stays open, without a pause. Every answer is compared with what ``Index.search`` says of that
query alone. Beside it the same calls without a server, one and 16 queries a call, also on one
thread.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.costs import networks_to_serve
from benchmarks.costs.served_problems import PROBLEMS, ServedProblem, ServedQueries, make_index
from benchmarks.records import markdown, read_record, write_shown
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._reporter import Reporter
from laplace_metric.errors import InputError, LaplaceMetricWarning, UnknownNameError
from laplace_metric.search import SearchResult

K, TOGETHER = 5, (1, 16)
LOADS = ((1, 1), (1, 32), (16, 1), (16, 32))
"""--batch of the server, and clients."""
SHOWN = ((1, 1), (16, 32))
"""Loads in the table."""


def run(options: Namespace) -> None:
    """Measure the problems and write ``serve.json``; rows of others stay as they are.

    Raises
    ------
    InputError
        Without a data folder.
    UnknownNameError
        For a problem that is none.
    """
    import_module("laplace_metric.serve")  # the error names the extra
    torch.set_num_threads(1)
    data = options.data or os.environ.get("LAPLACE_METRIC_DATA")
    if data is None:
        raise InputError("--data is not given: name the folder of the image sets.")
    chosen = options.problems or list(PROBLEMS)
    for name in chosen:
        if name not in PROBLEMS:
            raise UnknownNameError("problems", name, tuple(PROBLEMS))
    measured_now = {}
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            queries = make_index(PROBLEMS[name], Path(data), Path(folder))
            rows = measured(PROBLEMS[name], queries, Path(folder) / "index")
            measured_now[name] = [{"problem": name, **row} for row in rows]
    write_shown("serve", {"rows": _with_others(measured_now)}, options)


def _with_others(now: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """All rows in the order of the problems; of those not measured now, the committed ones."""
    before = [] if set(now) == set(PROBLEMS) else read_record("serve")["rows"]
    kept = {name: [row for row in before if row["problem"] == name] for name in PROBLEMS}
    return [row for name in PROBLEMS for row in now.get(name, kept[name])]


def measured(
    problem: ServedProblem, queries: ServedQueries, index: Path
) -> Iterator[dict[str, Any]]:
    """Rows of the calls without a server, and of each load."""
    options = parser_of("serve").parse([str(index), "--trust-recipe", "--quiet"])
    gallery = load_gallery(index, options, Reporter(quiet=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        yield from direct(gallery, problem, queries)
        rows = range(len(queries.contents))
        alone = [gallery.index.search(queries.batch([row]), K) for row in rows]
    for batch, clients in LOADS:
        with server(index, "--batch", str(batch)) as port:
            asked(port, queries, clients, clients)  # what is loaded at the first request
            answers, seconds = asked(port, queries, clients, problem.requests)
        found = compared(answers, alone)
        row = {"how": "served", "batch": batch, "clients": clients, "requests": problem.requests}
        rate = problem.requests / seconds
        yield {**row, "per_second": rate, **latencies([a[2] for a in answers]), **found}


def direct(
    gallery: LoadedIndex, problem: ServedProblem, queries: ServedQueries
) -> Iterator[dict[str, Any]]:
    """``Index.search`` with the reading of the queries, one and several a call."""
    n = len(queries.contents)
    for size in TOGETHER:
        taken, begin = [], time.perf_counter()
        calls = problem.requests // size
        for call in range(calls):
            start = time.perf_counter()
            gallery.index.search(queries.batch([(call * size + i) % n for i in range(size)]), K)
            taken.append(time.perf_counter() - start)
        rate = calls * size / (time.perf_counter() - begin)
        row = {"how": "Python", "batch": size, "clients": 1, "requests": calls * size}
        yield {**row, "per_second": rate, **latencies(taken)}


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99 % quantile."""
    return {"p50": float(np.quantile(seconds, 0.5)), "p99": float(np.quantile(seconds, 0.99))}


@contextmanager
def server(index: Path, *words: str) -> Iterator[int]:
    """The port of ``laplace-metric serve`` with this index."""
    root = Path(networks_to_serve.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "laplace_metric", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--trust-recipe", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        told = (re.search(r"running on http://[^:]+:(\d+)", line) for line in process.stderr)
        yield int(next(found[1] for found in told if found is not None))
    finally:
        process.terminate()
        process.wait()


Answered = tuple[int, int, float, Any]
"""Query, status, seconds, content."""


def asked(
    port: int, queries: ServedQueries, clients: int, requests: int
) -> tuple[list[Answered], float]:
    """Every answer, and the seconds from the first request to the last answer."""
    begin = threading.Barrier(clients + 1)

    def asks(client: int) -> list[Answered]:
        connection, answers = http.client.HTTPConnection("127.0.0.1", port, timeout=600), []
        connection.connect()
        begin.wait()
        for number in range(client, requests, clients):
            row, start = number % len(queries.contents), time.perf_counter()
            content = queries.contents[row]
            connection.request("POST", f"/search?k={K}", content, {"Content-Type": queries.kind})
            response = connection.getresponse()
            read = json.loads(response.read())
            answer = read[0] if response.status == 200 else read
            answers.append((row, response.status, time.perf_counter() - start, answer))
        connection.close()
        return answers

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(asks, client) for client in range(clients)]
        begin.wait()
        start = time.perf_counter()
        answers = [answer for one in running for answer in one.result()]
        return answers, time.perf_counter() - start


def compared(answers: Sequence[Answered], alone: Sequence[SearchResult]) -> dict[str, float]:
    """Lost requests, answers with other neighbours, largest gap of a probability or distance."""
    lost, others, gap = 0, 0, 0.0
    for row, status, _, content in answers:
        if status != 200:
            lost += 1
            continue
        result, near = alone[row], content["neighbours"]
        others += [n["id"] for n in near] != result.ids[0].tolist()
        for name in ("match_probability", "distance"):
            told = np.array([n[name] for n in near])
            gap = max(gap, float(np.abs(told - getattr(result, name)[0].numpy()).max()))
    return {"lost": lost, "other_neighbours": others, "largest_gap": gap}


def table() -> str:
    """Requests a second, latency and differences."""
    header = ["problem", "how", "clients", "a second", "p50", "p99", "lost", "largest gap"]
    lines = []
    for row in read_record("serve")["rows"]:
        if (row["batch"], row["clients"]) not in SHOWN:
            continue
        how = f"{row['how']}, {'up to ' * (row['how'] == 'served')}{row['batch']} a call"
        times = [f"{1000 * row[name]:,.0f} ms" for name in ("p50", "p99")]
        served = [f"{row['lost']}", f"{row['largest_gap']:.0e}"] if "lost" in row else ["", ""]
        lines.append(
            [row["problem"], how, f"{row['clients']}", f"{row['per_second']:,.0f}", *times, *served]
        )
    return markdown(header, lines)


TABLES = {"serve": table}
