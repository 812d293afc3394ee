"""Exact nearest neighbours: candidates by fast products, near ties settled in float64."""

from laplace_metric.evaluation.neighbours._candidates import (
    Proposer,
    block_proposer,
    faiss_fits,
    faiss_proposer,
)
from laplace_metric.evaluation.neighbours._rerank import (
    SPARE,
    exact_stage,
    in_parts,
    run_stages,
    shortlist_stage,
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
    "Neighbours",
    "Proposer",
    "block_proposer",
    "exact_stage",
    "excluded_rows",
    "faiss_fits",
    "faiss_proposer",
    "in_parts",
    "nearest_index",
    "nearest_neighbours",
    "run_stages",
    "search_problem",
    "shortlist_stage",
]
