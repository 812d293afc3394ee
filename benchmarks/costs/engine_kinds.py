"""The engines of the benchmark: our own, FAISS, and those that users run, each in its own place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from benchmarks.examples.engines import (
    LanceTable,
    Neighbours,
    PgVector,
    Qdrant,
    QdrantEdge,
    StoredItems,
    VectorEngine,
    temporary_server,
)
from benchmarks.examples.engines.distances import from_squared
from benchmarks.examples.engines.packages import needed
from laplace_metric.search._built_engine import build
from laplace_metric.search._engine_settings import HNSW, Flat

LINKS, BUILD_EF, EF = 16, 64, 128
"""Of a graph: links of an item, candidates while it is built, candidates of a search."""
SMALL_ONLY = ("Qdrant client, in Python",)
"""Its own advice is to hold no more than 20,000 items."""


class OwnEngine:
    """The engine of an index, by the same protocol."""

    def __init__(self, kind: Flat | HNSW) -> None:
        self.kind = kind

    def store(self, items: StoredItems) -> None:
        """Anew."""
        self.items = items
        self.engine = build(torch.from_numpy(items.vectors), self.kind)

    def search(self, vectors: Any, k: int) -> Neighbours:
        """As ``Index`` asks it."""
        rows = self.engine.search(torch.from_numpy(vectors), k).numpy()
        squared = np.square(self.items.vectors[rows] - vectors[:, None]).sum(2)
        return of_rows(self.items, rows, from_squared(squared))

    def __len__(self) -> int:
        return len(self.items)

    def close(self) -> None:
        """Nothing to do."""


class PlainFaiss(OwnEngine):
    """FAISS, nothing around it."""

    def store(self, items: StoredItems) -> None:
        """Anew."""
        faiss, width = needed("faiss"), items.vectors.shape[1]
        self.items = items
        if isinstance(self.kind, HNSW):
            self.faiss = faiss.IndexHNSWFlat(width, self.kind.links)
            self.faiss.hnsw.efSearch = self.kind.ef
        else:
            self.faiss = faiss.IndexFlatL2(width)
        self.faiss.add(items.vectors)

    def search(self, vectors: Any, k: int) -> Neighbours:
        """Squared distances, of which the root is taken."""
        squared, rows = self.faiss.search(vectors, k)
        return of_rows(self.items, rows, from_squared(squared))


def of_rows(items: StoredItems, rows: Any, distances: Any) -> Neighbours:
    """What is known of the items at ``rows`` [Q, k]."""
    known = (items.labels[rows], items.epistemic[rows], items.spread[rows])
    return Neighbours(items.ids[rows], distances, *known)


Maker = Callable[[ExitStack], tuple[VectorEngine, Callable[[], None] | None]]
"""An engine in a place of its own, and what builds its graph."""


def engines() -> Mapping[str, Maker]:
    """Every row of the table."""

    def here(engine: VectorEngine) -> Maker:
        return lambda _: (engine, None)

    def in_folder(kind: Any, exact: bool) -> Maker:
        def make(stack: ExitStack) -> Any:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            engine = kind(f"{folder}/engine", exact=exact, ef=EF)
            return engine, None if exact else lambda: engine.build_hnsw(LINKS, BUILD_EF)

        return make

    def postgres(exact: bool) -> Maker:
        def make(stack: ExitStack) -> Any:
            engine = PgVector(stack.enter_context(temporary_server()).address, exact=exact, ef=EF)
            return engine, None if exact else lambda: engine.build_hnsw(LINKS, BUILD_EF)

        return make

    graph = HNSW(links=LINKS, ef=EF)
    return {
        "our index, flat": here(OwnEngine(Flat())),
        "our index, HNSW": here(OwnEngine(graph)),
        "FAISS, flat": here(PlainFaiss(Flat())),
        "FAISS, HNSW": here(PlainFaiss(graph)),
        "pgvector, exact": postgres(True),
        "pgvector, HNSW": postgres(False),
        "LanceDB, exact": in_folder(LanceTable, True),
        "LanceDB, HNSW": in_folder(LanceTable, False),
        "Qdrant Edge, exact": in_folder(QdrantEdge, True),
        "Qdrant Edge, HNSW": in_folder(QdrantEdge, False),
        "Qdrant client, in Python": lambda _: (Qdrant(), None),
    }
