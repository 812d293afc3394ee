"""Digits in an engine: ``python -m benchmarks.examples.engines NAME [--place PLACE]``.

900 handwritten digits go into the engine with their numbers, others ask it; beside it stands what
``Index.search`` says. PLACE is a folder (LanceDB, Qdrant), the address of a PostgreSQL or of a
server of Qdrant, Elasticsearch or OpenSearch. Without it: a temporary folder, a PostgreSQL of its
own, and of the last two the requests as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.examples.engines.elastic import Elastic, http_sender
from benchmarks.examples.engines.elastic_json import DIALECTS, documents, mapping, question
from benchmarks.examples.engines.items import StoredItems
from benchmarks.examples.engines.lance import LanceTable
from benchmarks.examples.engines.pgvector import PgVector
from benchmarks.examples.engines.postgres_server import temporary_server
from benchmarks.examples.engines.protocol import VectorEngine, judged, vectors_of
from benchmarks.examples.engines.qdrant import Qdrant
from benchmarks.examples.engines.qdrant_edge import QdrantEdge
from benchmarks.networks import perceptron
from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.search import Index

FOLDERS: dict[str, Callable[[str], VectorEngine]] = {
    "lancedb": LanceTable,
    "qdrant": Qdrant,
    "qdrant-edge": QdrantEdge,
}
NAMES = ("pgvector", *FOLDERS, *DIALECTS)
K, ITEMS, HELD_OUT = 20, 900, 400
PRECISION = 0.9


@dataclass(frozen=True)
class Comparison:
    """Of the engine's answers with those of the index."""

    queries: int
    same_neighbours: float
    largest_difference: float
    same_decisions: float

    def __str__(self) -> str:
        return (
            f"{self.queries} queries: {self.same_neighbours:.1%} of the {K} neighbours are those "
            f"of the index,\nmatch probabilities differ by {self.largest_difference:.0e} at most, "
            f"{self.same_decisions:.1%} of the decisions are the same"
        )


def digits() -> tuple[LaplaceEmbedder, Index, torch.Tensor]:
    """An embedder, an index with a portable calibration, and queries."""
    train, test = datasets.load("digits"), datasets.load("digits", "test")
    torch.manual_seed(0)
    model = perceptron(64, 32, hidden=128)
    embedder = LaplaceEmbedder(model).fit(train.loader(256), progress=False)
    items = train.pixels(slice(0, ITEMS)), train.labels[:ITEMS]
    index = embedder.index(*items, rank_by="mean", progress=False)
    held = test.pixels(slice(0, HELD_OUT)), test.labels[:HELD_OUT]
    index.calibrate(*held, portable=True)
    return embedder, index, test.pixels(slice(HELD_OUT, HELD_OUT + 200))


def compared(engine: VectorEngine) -> Comparison:
    """Store, ask, judge."""
    embedder, index, queries = digits()
    how: dict[str, Any] = {"spherical": embedder.spherical}
    engine.store(StoredItems.of_index(index))
    embedding = embedder(queries)
    found = engine.search(vectors_of(embedding, **how), K)
    assert index.calibration is not None
    verdict, wanted = judged(index.calibration, found, embedding, **how), index.search(queries, K)
    assert wanted.match_probability is not None
    probability = np.asarray(wanted.match_probability)
    threshold = index.guarantee(precision=PRECISION, of="match")
    accepted = threshold(verdict).answered
    same = accepted == np.asarray(threshold(wanted).answered)
    same &= verdict.unknown == np.asarray(wanted.unknown)
    return Comparison(
        len(found.ids),
        float((found.ids == wanted.ids).mean()),
        float(np.abs(verdict.match_probability - probability).max()),
        float(same.mean()),
    )


@contextmanager
def opened(name: str, place: str | None) -> Iterator[VectorEngine]:
    """The engine, at ``place`` or at one that is gone afterwards."""
    if name in DIALECTS:
        assert place is not None
        yield Elastic(http_sender(place), name)
    elif name == "pgvector" and place is None:
        with temporary_server() as server:
            yield PgVector(server.address)
    elif place is None:
        with tempfile.TemporaryDirectory() as folder:
            yield FOLDERS[name](f"{folder}/engine")
    else:
        yield PgVector(place) if name == "pgvector" else FOLDERS[name](place)


def requests(dialect: str) -> str:
    """What would be sent: index, first item, first question."""
    embedder, _, queries = digits()
    how: dict[str, Any] = {"spherical": embedder.spherical}
    train = datasets.load("digits")
    stored = StoredItems.of(embedder(train.pixels(slice(0, 1))), train.labels[:1], **how)
    asked = vectors_of(embedder(queries[:1]), **how)[0].tolist()
    bodies = {
        "PUT /items": mapping(dialect, len(asked), whole=True),
        "POST /items/_bulk": list(documents(stored)),
        "POST /items/_search": question(dialect, asked, K),
    }
    return "\n".join(f"{path}\n{json.dumps(body)}" for path, body in bodies.items())


def main(words: list[str] | None = None) -> None:
    """Run one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--place")
    options = parser.parse_args(words)
    if options.name in DIALECTS and options.place is None:
        print(requests(options.name))
        return
    with opened(options.name, options.place) as engine:
        print(compared(engine))
        engine.close()


if __name__ == "__main__":
    main()
