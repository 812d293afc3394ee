"""Interface of engines: positions of the nearest vectors, and nothing about uncertainty.

Exact search over vectors that are only read: fast shortlists, near ties settled in float64.

Settings of engines, the names that stand for them, and both as JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.evaluation._reranking import nearest_rows
from laplace_metric.evaluation._shortlists import (
    CandidateSearch,
    block_candidates,
    faiss_candidates,
    faiss_fits,
    require_faiss,
)


@dataclass(frozen=True)
class Flat:
    """Exact search, through FAISS where it is installed; the same answer without it.

    Time O(N) a query. Near ties are settled in float64; equal distances in order of position.

    Parameters
    ----------
    faiss : bool or None
        True searches through FAISS, False without it. None, the default: through FAISS where it
        is installed and the vectors are float32 in main memory.
    """

    faiss: bool | None = None


@dataclass(frozen=True)
class IVF:
    """FAISS's inverted file: only the lists nearest to a query are looked through.

    Parameters
    ----------
    lists : int or None
        Lists of the inverted file. None, the default: 4 sqrt(N), at most N / 39 (FAISS wants 39
        training vectors a list).
    probes : int or None
        Lists searched for a query. None, the default: an eighth of them, at least 8.
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
        Links of each item in the graph, at least 2; default 32.
    ef : int
        Candidates stored while searching, at least k; more find more. Default 128.
    """

    links: int = 32
    ef: int = 128

    def __post_init__(self) -> None:
        for name in ("links", "ef"):
            check_count(f"HNSW: {name}", getattr(self, name))
        if self.links < 2:  # FAISS ends the process
            raise InputError(f"HNSW: links={self.links}: pass at least 2.")


EngineKind = Flat | IVF | HNSW
KINDS: dict[str, type[EngineKind]] = {k.__name__.lower(): k for k in (Flat, IVF, HNSW)}


def kind_of(engine: str | EngineKind) -> EngineKind:
    """Return the settings that a name stands for; settings are returned as they are.

    ``"flat"``, ``"ivf"`` and ``"hnsw"`` are the kinds with their defaults.

    Raises
    ------
    UnknownNameError
        If there is no engine of this name.

    Examples
    --------
    >>> kind_of("ivf"), kind_of(HNSW(links=16))
    (IVF(lists=None, probes=None), HNSW(links=16, ef=128))
    """
    if isinstance(engine, (Flat, IVF, HNSW)):
        return engine
    if not isinstance(engine, str) or engine not in KINDS:
        raise UnknownNameError("engine", engine, (*KINDS, "Flat()", "IVF()", "HNSW()"))
    return KINDS[engine]()


def kind_to_json(kind: EngineKind) -> dict[str, Any]:
    """Return the name of the kind and its numbers."""
    return {"name": type(kind).__name__.lower(), **asdict(kind)}


def kind_from_json(content: dict[str, Any]) -> EngineKind:
    """Read the result of ``kind_to_json``.

    Raises
    ------
    UnknownNameError
        If the kind is unknown.
    """
    numbers = {name: value for name, value in content.items() if name != "name"}
    return KINDS[check_name("engine", content.get("name"), KINDS)](**numbers)


class Engine(ABC):
    """Finds the nearest of the vectors [N, d] that it was given."""

    vectors: Float[Tensor, "N d"]
    kind: EngineKind
    mapped: bool = False
    """True if it reads its vectors from disk."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the rows of the nearest vectors [Q, k], nearest first; 1 <= k <= N.

        -1 where an approximate engine found fewer than k.
        """

    @abstractmethod
    def updated(self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None) -> Engine:
        """Return the engine with other vectors [N, d].

        These are the ``remaining`` rows of the old ones, or all of them with new ones at the end.
        """


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
