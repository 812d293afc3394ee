"""A guard over a FAISS index as it is: ``python -m benchmarks engines --pieces guard``.

Items and queries of ``engine_items`` (grey). FAISS indexes hold the mean embeddings, exact and as
an HNSW graph; ``Guard.wrap`` is given the index, the labels and 1,000 held-out queries, which the
network was not trained on, as it was on a part of the items. Wall time of a query alone and of
100 together, of the engine and of ``Guard.ask``, on one core; and what the guard answers of the
queries that are asked, at a guaranteed precision of 0.9.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.costs.engine_items import engine_problems
from benchmarks.costs.engines import TOGETHER, WARM, K, N, one_core, single
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import Guard

Pair = tuple[Any, Any]
"""Vectors [n, D] and labels [n], NumPy."""
PRECISION = 0.9
LINKS, BUILT_WITH, SEARCHED_WITH = 16, 64, 128


def run(options: Namespace) -> None:
    """Measure and write ``guard.json``."""
    torch.set_num_threads(1)
    options.problems = ["grey"]
    with one_core():
        (problem,) = engine_problems(options)
        rows = []
        for n in options.n or N:
            x, y = problem.some(n)
            with torch.no_grad():
                items = torch.cat([problem.embedder(part).mean for part in x.split(1024)]).numpy()
                asked, held_out = (
                    (problem.embedder(x).mean.numpy(), y.numpy())
                    for x, y in (problem.asked, problem.held_out)
                )
            for name, index in engines(items.shape[1]).items():
                rows.append(measured(name, index, (items, y.numpy()), asked, held_out))
                print(rows[-1], flush=True)
    write_record("guard", {"rows": rows}, folder_of(options))


def engines(width: int) -> dict[str, Any]:
    """Return empty indexes by name."""
    graph = faiss.IndexHNSWFlat(width, LINKS)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = BUILT_WITH, SEARCHED_WITH
    return {"FAISS, flat": faiss.IndexFlatL2(width), "FAISS, HNSW": graph}


def measured(name: str, index: Any, gallery: Pair, asked: Pair, held_out: Pair) -> dict[str, Any]:
    """Fill the index, guard it, and ask both."""
    (items, labels), (queries, truth) = gallery, asked
    index.add(items)
    begin = time.process_time()
    guard = Guard.wrap(index, labels, precision=PRECISION, held_out=held_out)
    row: dict[str, Any] = {"engine": name, "n": len(items), "width": items.shape[1]}
    row["guard_cpu_seconds"] = time.process_time() - begin
    for who, search in (("bare", index.search), ("guarded", lambda rows, k: guard.ask(rows))):
        alone = single(queries, search)
        row[f"{who}_p50"], row[f"{who}_p95"] = np.quantile(alone, [0.5, 0.95]).tolist()
        together = []
        for start in range(0, len(queries), TOGETHER):
            begin = time.perf_counter()
            search(queries[start : start + TOGETHER], K)
            together.append((time.perf_counter() - begin) / TOGETHER)
        row[f"{who}_together"] = float(np.median(together[min(WARM, len(together) - 1) :]))
    answers = guard.ask(queries)
    answered = answers.answered.numpy()
    right = answers.labels[answered] == truth[answered]
    return {**row, "answered": float(answered.mean()), "right": float(right.mean())}


def table() -> str:
    """Latency beside the bare engine, and whether the precision was kept."""
    header = ["items", "engine", "bare: p50, p95", "guarded: p50, p95",
              "of 100 together: bare", "guarded", "answered", "right"]  # fmt: skip
    lines = []
    for row in read_record("guard")["rows"]:
        alone = [
            ", ".join(f"{1e3 * row[f'{who}_{at}']:.2g} ms" for at in ("p50", "p95"))
            for who in ("bare", "guarded")
        ]
        together = [f"{1e3 * row[f'{who}_together']:.2g} ms" for who in ("bare", "guarded")]
        answers = [f"{row['answered']:.1%}", f"{row['right']:.1%}"]
        lines.append([f"{row['n']:,}", row["engine"], *alone, *together, *answers])
    return markdown(header, lines)


TABLES = {"guard": table}
