"""Engines that users already run, each with what an uncertain embedding needs: one file an engine.

``StoredItems`` go in, ``Neighbours`` come back, ``judged`` says what ``Index.search`` would say of
them. Packages of an engine are imported when it is made.
"""

from benchmarks.examples.engines.elastic import Elastic, http_sender
from benchmarks.examples.engines.items import StoredItems
from benchmarks.examples.engines.lance import LanceTable
from benchmarks.examples.engines.pgvector import PgVector
from benchmarks.examples.engines.postgres_server import (
    PostgresServer,
    postgres_programs,
    temporary_server,
)
from benchmarks.examples.engines.protocol import Neighbours, VectorEngine, judged, vectors_of
from benchmarks.examples.engines.qdrant import Qdrant
from benchmarks.examples.engines.qdrant_edge import QdrantEdge

__all__ = [
    "Elastic",
    "LanceTable",
    "Neighbours",
    "PgVector",
    "PostgresServer",
    "Qdrant",
    "QdrantEdge",
    "StoredItems",
    "VectorEngine",
    "http_sender",
    "judged",
    "postgres_programs",
    "temporary_server",
    "vectors_of",
]
