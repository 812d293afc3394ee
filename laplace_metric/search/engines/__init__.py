"""Engines that find the nearest vectors: one file a kind, built from a value that names it."""

from laplace_metric.search.engines._build import build, kind_from_json, kind_of, kind_to_json
from laplace_metric.search.engines._faiss import FaissEngine
from laplace_metric.search.engines._flat import FlatEngine
from laplace_metric.search.engines._protocol import HNSW, IVF, Engine, EngineHits, EngineKind, Flat
from laplace_metric.search.engines._without import WithoutSome

__all__ = [
    "HNSW",
    "IVF",
    "Engine",
    "EngineHits",
    "EngineKind",
    "FaissEngine",
    "Flat",
    "FlatEngine",
    "WithoutSome",
    "build",
    "kind_from_json",
    "kind_of",
    "kind_to_json",
]
