"""Nearest neighbours of uncertain embeddings, and whether they are a match."""

from laplace_metric.search._cross_fit import cross_index
from laplace_metric.search._engine import HNSW, IVF, Flat
from laplace_metric.search._index import Index
from laplace_metric.search._label_review import LabelReview
from laplace_metric.search._label_sets import LabelSets, RetrievalSets
from laplace_metric.search._rankings import Predictive
from laplace_metric.search._report import IndexReport
from laplace_metric.search._result import SearchResult

__all__ = [
    "HNSW",
    "IVF",
    "Flat",
    "Index",
    "IndexReport",
    "LabelReview",
    "LabelSets",
    "Predictive",
    "RetrievalSets",
    "SearchResult",
    "cross_index",
]
