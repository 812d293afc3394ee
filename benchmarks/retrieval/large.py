"""Ten million items in memory: ``python -m benchmarks retrieval --pieces large [--n N]``.

A compact index (means and two numbers an item) with FAISS's inverted file, of points around 1,000
class means, D = 512 in front of a linear head with a Kronecker posterior and Z = 128 behind it, on
the sphere, read batch by batch. Calibrated on 2,000 queries; 1,000 others, which are points with as
much noise again, are searched for k = 10, at once and one at a time. Plain FAISS is the same
inverted file over the same embeddings; recall is against exact search of a hundred queries.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from benchmarks.records import folder_of, write_record
from benchmarks.scale.common import Points
from benchmarks.sizes import Problem
from benchmarks.timing import seconds, usage
from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index
from laplace_metric.search._engine_settings import IVF

ITEMS = {"full": 10_000_000, "smoke": 20_000}
FITTED, CALIBRATE, QUERIES, ONE_BY_ONE, EXACT, K, ROUNDS = 20_000, 2_000, 1_000, 100, 100, 10, 3
BLOCK = 500_000
"""Items that exact search looks at at once."""


def kind_of(n: int) -> IVF:
    """Fewer lists than by default, whose training would take as long as all the rest."""
    lists = min(2_048, n // 64)
    return IVF(lists=lists, probes=max(1, lists // 64))


def noisy(problem: Problem, n: int) -> tuple[Tensor, Tensor]:
    """n points that are none of the items, with their labels."""
    x, labels = next(iter(Points(n, problem)))
    g = torch.Generator().manual_seed(5)
    return x[:n] + torch.randn(x[:n].shape, generator=g), labels[:n]


def recall(index: Index, queries: Tensor) -> float:
    """Of the nearest ten, against all items."""
    means, asked = index.items.encoded.mean.numpy(), queries.numpy()
    parts = [
        faiss.knn(asked, np.ascontiguousarray(means[i : i + BLOCK]), K)
        for i in range(0, len(means), BLOCK)
    ]
    distances = np.concatenate([d for d, _ in parts], 1)
    rows = np.concatenate([r + i * BLOCK for i, (_, r) in enumerate(parts)], 1)
    truth = np.take_along_axis(rows, distances.argsort(1)[:, :K], 1)
    found = index.engine.search(queries, K).numpy()
    return float((found[:, :, None] == truth[:, None, :]).any(2).mean())


def measured(n: int) -> dict[str, Any]:
    """Of one index."""
    problem = Problem(common=2**0.5)
    embedder = LaplaceEmbedder(problem.model(), structure="kron")
    embedder.fit(Points(FITTED, problem), progress=False)
    with usage() as building:
        items, kind = Points(n, problem), kind_of(n)
        index = embedder.index(items, engine=kind, compact=True, progress=False)
    x, labels = noisy(problem, CALIBRATE + QUERIES)
    with usage() as calibrating:
        index.calibrate(x[:CALIBRATE], labels[:CALIBRATE])
    x = x[CALIBRATE:]
    means = embedder(x).mean
    took = in_turn(index, x, means)
    return {
        "items": n,
        "engine": str(kind),
        "built": building["wall_seconds"],
        "calibrated": calibrating["wall_seconds"],
        "peak_mb": building["peak_mb"],
        "bytes": sum(t.nbytes for t in vars(index.items.encoded).values()),
        "recall@10": recall(index, means[:EXACT]),
        "seconds": took,
    }


def in_turn(index: Index, x: Tensor, means: Tensor) -> dict[str, float]:
    """Least seconds a query of each way, all of them once a round."""
    lists: Any = index.engine
    asked = means.numpy()
    ways = {
        "plain FAISS": lambda: lists.index.search(asked, K),
        "search": lambda: index.search(x, K),
    }
    rounds = [{name: seconds(way)[0] / len(x) for name, way in ways.items()} for _ in range(ROUNDS)]
    took = {name: min(row[name] for row in rounds) for name in ways}
    single: dict[str, list[float]] = {"one query, plain FAISS": [], "one query": []}
    for i in range(ONE_BY_ONE):
        part = slice(i, i + 1)
        for name, way in (
            ("one query, plain FAISS", lambda p=part: lists.index.search(asked[p], K)),
            ("one query", lambda p=part: index.search(x[p], K)),
        ):
            start = time.perf_counter()
            way()
            single[name].append(time.perf_counter() - start)
    return took | {name: float(np.median(times)) for name, times in single.items()}


def run(options: Namespace) -> None:
    """One row for each N."""
    rows = [measured(n) for n in options.n or [ITEMS[options.size]]]
    for row in rows:
        print(row, flush=True)
    write_record("retrieval_large", {"k": K, "rows": rows}, folder_of(options))
