"""Exact search over vectors that are only read: fast shortlists, near ties settled in float64."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.evaluation._reranking import nearest_rows
from laplace_metric.evaluation._shortlists import (
    CandidateSearch,
    block_candidates,
    faiss_candidates,
    faiss_fits,
    require_faiss,
)
from laplace_metric.search._engine import Engine
from laplace_metric.search._engine_settings import Flat


class FlatEngine(Engine):
    """Exact search over vectors [N, d], which may be a memory map.

    Parameters
    ----------
    vectors : Tensor [N, d]
        The vectors, which are not copied.
    kind : Flat
        Settings of the exact search.
    mapped : bool
        Read the vectors block by block, so that no second copy is made.

    Raises
    ------
    InputError
        If FAISS is asked for and cannot hold the vectors.
    """

    kind: Flat

    def __init__(self, vectors: Float[Tensor, "N d"], kind: Flat, *, mapped: bool = False) -> None:
        if kind.faiss and not faiss_fits(vectors):
            require_faiss()
            raise InputError(
                f"Flat(faiss=True): FAISS holds float32 on the CPU, the embeddings are "
                f"{vectors.dtype} on {vectors.device}. Pass Flat(), which needs no FAISS."
            )
        self.vectors, self.kind, self.mapped = vectors, kind, mapped

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but what the first search builds from the vectors."""
        built = ("_fast", "_careful")
        return {name: value for name, value in vars(self).items() if name not in built}

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the same neighbours whichever way they are found."""
        queries = queries.to(self.vectors)
        return nearest_rows(queries, self.vectors, k, self._fast, self._careful)[0]

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> FlatEngine:
        """Return exact search over the new vectors."""
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
