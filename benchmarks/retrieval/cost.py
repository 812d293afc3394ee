"""What a search costs beside plain FAISS: ``python -m benchmarks retrieval --pieces cost [--n N]``.

Items are points around 1,000 class means, D = 512 in front of a linear head and Z = 128 behind it,
on the sphere; 1,000 queries, which are items with as much noise again, k = 10. Plain FAISS is
``IndexFlatL2.search`` over the same mean embeddings. Each round times every way once; the least of
the rounds counts. Queries are embedded beforehand, except in ``whole search`` and ``one query``,
which begin with their inputs.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import faiss
import torch
from torch import Tensor

from benchmarks.records import folder_of, write_record
from benchmarks.scale.common import Points
from benchmarks.sizes import Problem
from benchmarks.timing import peak_bytes, seconds
from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index
from laplace_metric.search._built_engine import build
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._engine_settings import HNSW, IVF, Flat
from laplace_metric.search._expected_vectors import gallery_vectors
from laplace_metric.search._faiss import FaissEngine
from laplace_metric.search._neighbours import nearest
from laplace_metric.search._rankings import MeanRanking, SharedRanking

ITEMS, QUERIES, FITTED, K, ROUNDS = {"full": 1_000_000, "smoke": 3_000}, 1_000, 20_000, 10, 3
GRAPH = 100_000
"""Items of the graph, which takes minutes to build."""
PROBES = (8, 32, 128, 500)
Row = dict[str, Any]


@lru_cache(maxsize=1)
def indexed(structure: str, n: int) -> tuple[LaplaceEmbedder, Index, Encoded, Tensor]:
    """An embedder, an index of n items, queries as it knows them, and their inputs."""
    problem = Problem(common=2**0.5)
    embedder = LaplaceEmbedder(problem.model(), structure=structure)
    embedder.fit(Points(FITTED, problem), progress=False)
    index = embedder.index(Points(n, problem), progress=False)
    inputs = next(iter(Points(n, problem)))[0][:QUERIES]
    inputs = inputs + torch.randn(inputs.shape, generator=torch.Generator().manual_seed(5))
    encoder = index.encoder
    encoded, _ = encoder.all(encoder.read("queries", inputs), progress=False)
    return embedder, index, encoded, inputs


def timed(ways: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Least wall seconds of each way, all of them once a round, after one to warm up."""
    least = dict.fromkeys(ways, float("inf"))
    for call in ways.values():
        call()
    for _ in range(rounds):
        for name, call in ways.items():
            least[name] = min(least[name], seconds(call)[0])
    return least


def flat(structure: str, n: int) -> Row:
    """Exact search, in one batch and one query at a time."""
    start = time.perf_counter()
    _, index, queries, inputs = indexed(structure, n)
    built = time.perf_counter() - start
    plain = faiss.IndexFlatL2(queries.mean.shape[1])
    items = index.items.encoded
    plain.add(items.mean.numpy())
    expected = build(gallery_vectors(items.mean, items.trace, spherical=True), Flat())
    torch_only = build(items.mean, Flat(faiss=False))
    parts, stored = (items, index.encoder.pairs), index.engine.vectors
    mean, shared = MeanRanking(), SharedRanking()
    one, asked = queries.take(slice(0, 1)), queries.mean.numpy()
    wide = torch.cat([queries.mean, torch.zeros(len(queries), 1)], 1)
    rank = lambda some, by: nearest(index.engine.search, some, *parts, K, by, stored)  # noqa: E731
    ways: dict[str, Callable[[], Any]] = {
        "plain FAISS": lambda: plain.search(asked, K),
        "engine": lambda: index.engine.search(queries.mean, K),
        "engine, one more coordinate": lambda: expected.search(wide, K),
        "with distance and its deviation": lambda: rank(queries, mean),
        "shortlist ranked again": lambda: rank(queries, shared),
        "whole search": lambda: index.search(inputs, K),
    }
    single: dict[str, Callable[[], Any]] = {
        "one query, plain FAISS": lambda: plain.search(asked[:1], K),
        "one query": lambda: index.search(inputs[:1], K),
        "one query, shortlist ranked again": lambda: rank(one, shared),
    }
    slow = {"engine without FAISS": lambda: torch_only.search(queries.mean, K)}
    took = timed(ways) | timed(single) | timed(slow, 1)
    engines = (index.engine, torch_only)
    with_faiss, without = (engine.search(queries.mean, K) for engine in engines)
    return {"structure": structure, "items": n, "built": built, "seconds": took,
            "same without FAISS": torch.equal(with_faiss, without),
            "peak_mb": peak_bytes() / 1e6}  # fmt: skip


def approximate(n: int, graph: int) -> list[Row]:
    """recall@10 against exact search, and the time of a query in a batch."""
    _, index, queries, _ = indexed("diag", n)
    rows = _recalls(index.items.encoded.mean, queries.mean, [IVF(probes=p) for p in PROBES])
    fewer = index.items.encoded.mean[:graph]
    return rows + _recalls(fewer, queries.mean, [HNSW(ef=ef) for ef in (32, 128)])


def _recalls(vectors: Tensor, queries: Tensor, kinds: Sequence[IVF | HNSW]) -> list[Row]:
    exact = build(vectors, Flat())
    truth = exact.search(queries, K)
    rows = []
    start = time.perf_counter()
    first: Any = build(vectors, kinds[0])
    built = time.perf_counter() - start
    for kind in kinds:
        engine = FaissEngine(first.index, vectors, first.keys, kind)
        positions = engine.search(queries, K)
        share = (positions[:, :, None] == truth[:, None, :]).any(2).double().mean()
        took = timed({"search": partial(engine.search, queries, K)}, 2)["search"]
        flat_took = timed({"flat": lambda: exact.search(queries, K)}, 1)["flat"]
        row = {"kind": str(kind), "items": len(vectors), "built": built, "recall@10": float(share)}
        rows.append({**row, "seconds": took, "flat": flat_took})
    return rows


def mapped(n: int) -> Row:
    """Saving, loading and the first search of an index that stays on disk."""
    embedder, index, _, inputs = indexed("diag", n)
    row: Row = {"items": n}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.safetensors")
        row["save"] = seconds(lambda: index.save(path))[0]
        row["bytes"] = path.stat().st_size
        row["load"] = seconds(lambda: Index.load(path, embedder))[0]
        start = time.perf_counter()
        again = Index.load(path, embedder, mmap=True)
        row["load mapped"] = time.perf_counter() - start
        row["search mapped"] = timed({"search": lambda: again.search(inputs, K)}, 2)["search"]
    return row


def run(options: Namespace) -> None:
    """Exact, approximate and mapped search; the record is written after each."""
    n = options.n[0] if options.n else ITEMS[options.size]
    content: Row = {"queries": QUERIES, "k": K}
    folder = folder_of(options)
    pieces: dict[str, Callable[[], Any]] = {
        "flat": lambda: [flat("diag", n)],
        "approximate": lambda: approximate(n, min(GRAPH, n)),
        "mapped": lambda: mapped(n),
    }
    for name, piece in pieces.items():
        content[name] = piece()
        print(name, content[name], flush=True)
        write_record("retrieval_cost", content, folder)
    content["flat"].append(flat("kron", n))
    write_record("retrieval_cost", content, folder)
