"""A small collection, its calibrated index, and every engine that installs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.examples.engines import (
    Elastic,
    LanceTable,
    PgVector,
    PostgresServer,
    Qdrant,
    QdrantEdge,
    StoredItems,
    VectorEngine,
    postgres_programs,
    temporary_server,
    vectors_of,
)
from laplace_metric import Embedding, LaplaceEmbedder
from laplace_metric.errors import MissingPackageError
from laplace_metric.search import Index
from tests.benchmarks.engines.search_server import SearchServer

K = 20


@dataclass(frozen=True)
class Collection:
    """An index with a portable calibration, and the same items and queries for an engine."""

    embedder: LaplaceEmbedder
    index: Index
    items: Embedding
    labels: np.ndarray[Any, Any]
    queries: Embedding
    asked: torch.Tensor
    spherical: bool
    rank_by: str

    @property
    def how(self) -> dict[str, Any]:
        return {"spherical": self.spherical, "rank_by": self.rank_by}

    def stored(self) -> StoredItems:
        return StoredItems.of(self.items, self.labels, self.index.ids, **self.how)

    def vectors(self) -> np.ndarray[Any, Any]:
        return vectors_of(self.queries, **self.how)


@cache
def collection(rank_by: str = "mean", names: bool = False, spherical: bool = True) -> Collection:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(700) % 12
    x = 2 * torch.randn(12, 6, generator=g)[y] + 1.2 * torch.randn(700, 6, generator=g)
    labels = np.array([f"class {i}" for i in y]) if names else y.numpy()
    distance = "arccos" if spherical else "euclidean"
    embedder = LaplaceEmbedder.from_embeddings(
        x[:200],
        y[:200],
        prior_precision=20.0,
        distance=distance,
        hessian="positives",
        positivity="clip",
    )
    ids = np.random.default_rng(1).permutation(5_000)[:300]
    index = embedder.index(x[:300], labels[:300], ids, rank_by=rank_by, progress=False)
    index.calibrate(x[300:600], labels[300:600], portable=True)
    items, queries = embedder(x[:300]), embedder(x[600:])
    assert embedder.spherical == spherical
    return Collection(embedder, index, items, labels[:300], queries, x[600:], spherical, rank_by)


Opened = Callable[..., VectorEngine]
"""How an engine is opened again, at the same place."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        postgres_programs()
    except MissingPackageError as error:
        pytest.skip(str(error))
    with temporary_server() as server:
        yield server


ENGINES = ("pgvector", "lance", "qdrant", "qdrant_edge", "elasticsearch", "opensearch")
PACKAGES = {
    "pgvector": ("psycopg", "pgvector"),
    "lance": ("lancedb",),
    "qdrant": ("qdrant_client",),
    "qdrant_edge": ("qdrant_edge",),
}


@pytest.fixture
def opened(request, tmp_path) -> Opened:
    """Of the engine that the test names."""
    name = request.param
    for package in PACKAGES.get(name, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'laplace-metric[recipes]'")
    if name == "pgvector":
        server = request.getfixturevalue("postgres")
        table = f"items_{tmp_path.name.lower()}"[:60]
        return lambda **how: PgVector(server.address, table, **how)
    if name == "lance":
        return lambda **how: LanceTable(tmp_path / "lance", **how)
    if name == "qdrant":
        return lambda **how: Qdrant(str(tmp_path / "qdrant"), **how)
    if name == "qdrant_edge":
        return lambda **how: QdrantEdge(tmp_path / "edge", **how)
    answers = SearchServer(name)
    return lambda **how: Elastic(answers.send, name, **how)
