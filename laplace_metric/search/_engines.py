"""Interface of engines: positions of the nearest vectors, and nothing about uncertainty."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError
from laplace_metric.evaluation._candidates import (
    CandidateSearch,
    block_candidates,
    faiss_candidates,
    faiss_fits,
    nearest_rows,
    require_faiss,
)


@dataclass(frozen=True)
class Flat:
    """Exact search, through FAISS where it is installed; the same answer without it.

    Time O(N) a query. Near ties are settled in float64; equal distances in order of position.

    Parameters
    ----------
    faiss : bool or None
        None: where FAISS is installed and the vectors are float32 in main memory.
    """

    faiss: bool | None = None


@dataclass(frozen=True)
class IVF:
    """FAISS's inverted file: only the lists nearest to a query are looked through.

    Parameters
    ----------
    lists : int or None
        None: 4 sqrt(N), at most N / 39 (FAISS wants 39 training vectors a list).
    probes : int or None
        Lists looked through; None: an eighth of them, at least 8.
    """

    lists: int | None = None
    probes: int | None = None

    def __post_init__(self) -> None:
        for name in ("lists", "probes"):
            if getattr(self, name) is not None:
                check_count(f"IVF: {name}", getattr(self, name))


@dataclass(frozen=True)
class HNSW:
    """FAISS's navigable small-world graph. Removing items builds it again.

    Parameters
    ----------
    links : int
        Of each item, at least 2.
    ef : int
        Candidates kept while searching, at least k; more find more.
    """

    links: int = 32
    ef: int = 128

    def __post_init__(self) -> None:
        for name in ("links", "ef"):
            check_count(f"HNSW: {name}", getattr(self, name))
        if self.links < 2:  # FAISS ends the process
            raise InputError(f"HNSW: links={self.links}: pass at least 2.")


EngineKind = Flat | IVF | HNSW


class Engine(ABC):
    """Finds the nearest of the vectors [N, d] that it was given."""

    vectors: Float[Tensor, "N d"]
    kind: EngineKind
    mapped: bool = False
    """Whether it reads its vectors from disk."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the rows of the nearest vectors [Q, k], nearest first; 1 <= k <= N.

        -1 where an approximate engine found fewer than k.
        """

    @abstractmethod
    def updated(self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None) -> Engine:
        """With other vectors [N, d]: ``remaining`` rows of the old ones, or new ones at the end."""


# Exact search over vectors that are only read: fast shortlists, near ties settled in float64.


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
        """Without what is built from the vectors at the first search."""
        built = ("_fast", "_careful")
        return {name: value for name, value in vars(self).items() if name not in built}

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the same neighbours whichever way they are found."""
        queries = queries.to(self.vectors)
        return nearest_rows(queries, self.vectors, k, self._fast, self._careful)[0]

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


# A search that runs elsewhere, over the same items.


class ForeignEngine(Engine):
    """Rows that a function finds; their order is by our own distances, whatever its scores are.

    Saved as exact search, since the function is not ours to save.

    Parameters
    ----------
    vectors : Tensor [N, d]
        Of the items, in the order of the rows.
    find : function
        Queries [Q, d] as a NumPy array, and k -> rows [Q, k]; -1 where it found fewer.
    """

    kind = Flat()

    def __init__(self, vectors: Float[Tensor, "N d"], find: Callable[..., Any]) -> None:
        self.vectors, self.find = vectors, find

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Ask the function; rows that are not there are an error.

        Raises
        ------
        InputError
            For anything but rows [Q, k] from -1 to N - 1.
        """
        queries = queries.to(self.vectors)
        rows = torch.as_tensor(np.asarray(self.find(queries.cpu().numpy(), k)))
        if rows.shape != (len(queries), k) or rows.is_floating_point() or rows.is_complex():
            raise InputError(
                f"search returned {rows.dtype} of shape {list(rows.shape)}: return "
                f"the rows of the nearest items, whole numbers [{len(queries)}, {k}]."
            )
        if rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < len(self.vectors):
            raise InputError(
                f"search returned rows from {int(rows.min())} to {int(rows.max())} for "
                f"{len(self.vectors)} items: pass all items that it holds, in their order."
            )
        rows = rows.to(self.vectors.device, torch.int64)
        gaps = self.vectors[rows.clamp_min(0)] - queries[:, None]
        order = gaps.square().sum(2).masked_fill(rows < 0, torch.inf).argsort(dim=1, stable=True)
        return rows.gather(1, order)

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> ForeignEngine:
        """Refuse: the other search would not know of it."""
        raise InputError(
            "this index searches with an engine of yours: change its items there, and build again."
        )
