"""Exact nearest neighbours: candidates by fast products, near ties settled in float64."""

from laplace_metric.evaluation.neighbours._candidates import (
    CandidateSearch,
    block_candidates,
    faiss_candidates,
    faiss_fits,
    require_faiss,
)
from laplace_metric.evaluation.neighbours._rerank import (
    SPARE,
    chunked,
    exact_reranker,
    rerank,
    shortlist_reranker,
)
from laplace_metric.evaluation.neighbours._search import (
    Neighbours,
    excluded_rows,
    nearest_index,
    nearest_neighbours,
    search_problem,
)

__all__ = [
    "SPARE",
    "CandidateSearch",
    "Neighbours",
    "block_candidates",
    "chunked",
    "exact_reranker",
    "excluded_rows",
    "faiss_candidates",
    "faiss_fits",
    "nearest_index",
    "nearest_neighbours",
    "require_faiss",
    "rerank",
    "search_problem",
    "shortlist_reranker",
]
