"""Nearest neighbours of uncertain embeddings, and whether they are a match."""

from laplace_metric.search._cross_fit import cross_index, read_items, seen_at
from laplace_metric.search._encoding import Encoder
from laplace_metric.search._evaluate import PRECISIONS, promised_threshold
from laplace_metric.search._index import Index
from laplace_metric.search._items import Encoded
from laplace_metric.search._judged import Matches
from laplace_metric.search._labelled import labelled_loader
from laplace_metric.search._moments import gallery_vectors, moments, query_vectors
from laplace_metric.search._neighbours import RANKINGS, nearest
from laplace_metric.search._protocols import Encoders, FittedEmbedder, SearchEncoder
from laplace_metric.search._report import (
    AMBIGUITY,
    DISTANCE,
    EPISTEMIC,
    MATCH,
    UNCERTAINTY,
    IndexReport,
    OODReport,
    PromisedPrecision,
    SetCoverage,
)
from laplace_metric.search._result import RetrievalSets, SearchResult
from laplace_metric.search._storage import INDEX
from laplace_metric.search.engines._protocol import HNSW, IVF, Flat
from laplace_metric.search.labels import Classification, LabelReview, LabelSets
from laplace_metric.search.match import (
    Calibration,
    Shortfall,
    Verdict,
    read_calibration,
    write_calibration,
)

__all__ = [
    "AMBIGUITY",
    "DISTANCE",
    "EPISTEMIC",
    "HNSW",
    "INDEX",
    "IVF",
    "MATCH",
    "PRECISIONS",
    "RANKINGS",
    "UNCERTAINTY",
    "Calibration",
    "Classification",
    "Encoded",
    "Encoder",
    "Encoders",
    "FittedEmbedder",
    "Flat",
    "Index",
    "IndexReport",
    "LabelReview",
    "LabelSets",
    "Matches",
    "OODReport",
    "PromisedPrecision",
    "RetrievalSets",
    "SearchEncoder",
    "SearchResult",
    "SetCoverage",
    "Shortfall",
    "Verdict",
    "cross_index",
    "gallery_vectors",
    "labelled_loader",
    "moments",
    "nearest",
    "promised_threshold",
    "query_vectors",
    "read_calibration",
    "read_items",
    "seen_at",
    "write_calibration",
]
