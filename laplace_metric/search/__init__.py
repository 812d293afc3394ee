"""Nearest neighbours of uncertain embeddings, and whether they are a match."""

from laplace_metric.search._cross_fit import cross_index
from laplace_metric.search._engines import HNSW, IVF, Flat
from laplace_metric.search._evaluate import IndexReport
from laplace_metric.search._index import Index
from laplace_metric.search._labelled import LabelReview, LabelSets
from laplace_metric.search._result import Classification, RetrievalSets, SearchResult

__all__ = [
    "HNSW",
    "IVF",
    "Classification",
    "Flat",
    "Index",
    "IndexReport",
    "LabelReview",
    "LabelSets",
    "RetrievalSets",
    "SearchResult",
    "cross_index",
]
