"""Exact search over vectors that are only read: fast shortlists, near ties settled in float64."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.evaluation.neighbours import (
    SPARE,
    CandidateSearch,
    block_candidates,
    chunked,
    exact_reranker,
    faiss_candidates,
    faiss_fits,
    require_faiss,
    rerank,
    shortlist_reranker,
)
from laplace_metric.search.engines._protocol import Engine, EngineHits, Flat

MOST = 2**28
"""Bytes of all distances of the queries that are settled one item after the other."""


class FlatEngine(Engine):
    """Over vectors [N, d], which may be a memory map.

    Parameters
    ----------
    mapped : bool
        Read the vectors block by block, so that no second copy is made.

    Raises
    ------
    InputError
        If FAISS is asked for and cannot hold the vectors.
    """

    def __init__(self, vectors: Float[Tensor, "N d"], kind: Flat, *, mapped: bool = False) -> None:
        if kind.faiss and not faiss_fits(vectors):
            require_faiss()
            raise InputError(
                f"Flat(faiss=True): FAISS holds float32 on the CPU, the embeddings are "
                f"{vectors.dtype} on {vectors.device}. Pass Flat(), which needs no FAISS."
            )
        self.vectors, self.kind, self.mapped = vectors, kind, mapped

    def __getstate__(self) -> dict[str, Any]:
        """Without what is built from the vectors at the first search."""
        built = ("_fast", "_careful")
        return {name: value for name, value in vars(self).items() if name not in built}

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> EngineHits:
        """The same neighbours whichever way they are found."""
        rows = max(1, MOST // (8 * len(self.vectors)))
        rerankers = (
            lambda: shortlist_reranker(self.vectors, k, self._fast),
            lambda: shortlist_reranker(self.vectors, k, self._careful),
            lambda: chunked(exact_reranker(self.vectors, k), rows),
        )
        row_bytes = (k + SPARE) * self.vectors.shape[1] // 2
        positions, distances = rerank(queries.to(self.vectors), None, k, row_bytes, rerankers)
        return EngineHits(positions, distances.square().to(queries.dtype))

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> FlatEngine:
        """Over the new vectors."""
        return FlatEngine(vectors, self.kind)

    @cached_property
    def _fast(self) -> CandidateSearch:
        may_copy = self.kind.faiss is not False and not self.mapped
        if may_copy and faiss_fits(self.vectors):
            return faiss_candidates(self.vectors)
        return block_candidates(self.vectors, self.vectors.dtype)

    @cached_property
    def _careful(self) -> CandidateSearch:
        return block_candidates(self.vectors, torch.float64)
