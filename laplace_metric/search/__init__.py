"""Nearest neighbours of uncertain embeddings, and whether they are a match."""

from laplace_metric.search._encoding import Encoded
from laplace_metric.search._index import Index
from laplace_metric.search._ranking import (
    RANKINGS,
    gallery_vectors,
    moments,
    nearest,
    query_vectors,
)
from laplace_metric.search._result import RetrievalSets, SearchResult
from laplace_metric.search._storage import INDEX
from laplace_metric.search.engines._protocol import HNSW, IVF, Flat

__all__ = [
    "HNSW",
    "INDEX",
    "IVF",
    "RANKINGS",
    "Encoded",
    "Flat",
    "Index",
    "RetrievalSets",
    "SearchResult",
    "gallery_vectors",
    "moments",
    "nearest",
    "query_vectors",
]
