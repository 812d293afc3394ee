"""Nearest neighbours of uncertain embeddings, and whether they are a match."""

from laplace_metric.search.engines import HNSW, IVF, Flat
from laplace_metric.search.index import Index
from laplace_metric.search.moments import gallery_vectors, moments, query_vectors
from laplace_metric.search.result import SearchResult
from laplace_metric.search.sets import RetrievalSets

__all__ = [
    "HNSW",
    "IVF",
    "Flat",
    "Index",
    "RetrievalSets",
    "SearchResult",
    "gallery_vectors",
    "moments",
    "query_vectors",
]
