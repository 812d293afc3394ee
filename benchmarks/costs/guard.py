"""A guard around FAISS indexes: ``python -m benchmarks costs --pieces guard``.

Items and queries of ``engine_items``, as mean embeddings. 1,000 held-out queries calibrate, which
the network was not trained on, as it was on a part of the items. Exact indexes and HNSW graphs are
guarded through ``Guard.wrap``. Wall time of a query alone and of 100 together, of the engine and of
``Guard.ask``, on one core; and what the guard answers of the queries that are asked, at a
guaranteed precision of 0.9.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.costs.engine_items import EngineProblem, engine_problem
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import Guard

Pair = tuple[Any, Any]
"""Vectors [n, D] and labels [n], NumPy."""
PRECISION = 0.9
K, SINGLE, TOGETHER, WARM = 20, 200, 100, 5
"""Neighbours of the bare search; queries alone, those of one call, and those that warm up."""
N = (20_000, 200_000)
LINKS, BUILT_WITH, SEARCHED_WITH = 16, 64, 128


def run(options: Namespace) -> None:
    """Measure FAISS indexes as they are and write ``guard.json``."""
    torch.set_num_threads(1)
    with one_core():
        problem = engine_problem(options.data)
        rows = []
        for n in options.n or N:
            gallery, asked, held_out = arrays(problem, n)
            for name, index in engines(gallery[0].shape[1]).items():
                index.add(gallery[0])
                begin = time.process_time()
                guard = Guard.wrap(index, gallery[1], precision=PRECISION, held_out=held_out)
                facts = {"engine": name, "n": n, "width": index.d}
                facts["guard_cpu_seconds"] = time.process_time() - begin
                rows.append({**facts, **measured(guard, index.search, asked)})
                print(rows[-1], flush=True)
    write_record("guard", {"rows": rows}, folder_of(options))


def arrays(problem: EngineProblem, n: int) -> tuple[Pair, Pair, Pair]:
    """Return n items, the queries that ask and those that calibrate."""
    x, y = problem.some(n)
    with torch.no_grad():
        items = torch.cat([problem.embedder(part).mean for part in x.split(1024)]).numpy()
        asked, held_out = (
            (problem.embedder(x).mean.numpy(), y.numpy())
            for x, y in (problem.asked, problem.held_out)
        )
    return (items, y.numpy()), asked, held_out


def engines(width: int) -> dict[str, Any]:
    """Return empty indexes by name."""
    graph = faiss.IndexHNSWFlat(width, LINKS)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = BUILT_WITH, SEARCHED_WITH
    return {"FAISS, flat": faiss.IndexFlatL2(width), "FAISS, HNSW": graph}


def single(queries: Any, search: Callable[[Any, int], Any]) -> list[float]:
    """Return the seconds of each of some queries, after a few to warm up."""
    taken = []
    for row in [*range(WARM), *range(SINGLE)]:
        query, begin = queries[row : row + 1], time.perf_counter()
        search(query, K)
        taken.append(time.perf_counter() - begin)
    return taken[WARM:]


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process and those that it starts on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measured(guard: Guard, bare: Callable[..., Any], asked: Pair) -> dict[str, Any]:
    """Ask the guard and the bare search that it uses."""
    row: dict[str, Any] = {}
    queries, truth = asked
    for who, search in (("bare", bare), ("guarded", lambda rows, k: guard.ask(rows))):
        alone = single(queries, search)
        row[f"{who}_p50"], row[f"{who}_p95"] = np.quantile(alone, [0.5, 0.95]).tolist()
        together = []
        for start in range(0, len(queries), TOGETHER):
            begin = time.perf_counter()
            search(queries[start : start + TOGETHER], K)
            together.append((time.perf_counter() - begin) / TOGETHER)
        row[f"{who}_together"] = float(np.median(together[min(WARM, len(together) - 1) :]))
    answers = guard.ask(queries)
    answered = answers.answered
    right = answers.label[answered] == truth[answered]
    return {**row, "answered": float(answered.mean()), "right": float(right.mean())}


TIMES = ["bare: p50, p95", "guarded: p50, p95", "of 100 together: bare", "guarded"]


def table() -> str:
    """Latency beside the bare engine, and whether the precision was kept."""
    lines = [[f"{row['n']:,}", row["engine"], *_cells(row)] for row in read_record("guard")["rows"]]
    return markdown(["items", "engine", *TIMES, "answered", "right"], lines)


def _cells(row: dict[str, Any]) -> list[str]:
    alone = [
        ", ".join(f"{1e3 * row[f'{who}_{at}']:.2g} ms" for at in ("p50", "p95"))
        for who in ("bare", "guarded")
    ]
    together = [f"{1e3 * row[f'{who}_together']:.2g} ms" for who in ("bare", "guarded")]
    return [*alone, *together, f"{row['answered']:.1%}", f"{row['right']:.1%}"]


TABLES = {"guard": table}
