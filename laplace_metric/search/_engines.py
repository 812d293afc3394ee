"""Interface of engines: positions of the nearest vectors, and nothing about uncertainty."""

from __future__ import annotations

import math
import pickle
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
from laplace_metric.evaluation._reranking import nearest_rows
from laplace_metric.evaluation._shortlists import (
    CandidateSearch,
    block_candidates,
    faiss_candidates,
    faiss_fits,
    require_faiss,
)
from laplace_metric.search._columns import Column


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


class OutsideSearch:
    """A function that searches elsewhere: copies share it, and it is pickled if it can be.

    Parameters
    ----------
    find : function
        As for ``ForeignEngine``.
    """

    def __init__(self, find: Callable[..., Any]) -> None:
        self.find = find

    def __call__(self, queries: Any, k: int) -> Any:
        return self.find(queries, k)

    def __copy__(self) -> OutsideSearch:
        return self

    def __deepcopy__(self, memo: Any) -> OutsideSearch:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled.

        Raises
        ------
        InputError
            If the function cannot be pickled, with what to do instead.
        """
        try:
            return {"pickled": pickle.dumps(self.find)}
        except Exception as error:
            raise InputError(
                f"search= is a function that pickle cannot write ({error}): save the guard or "
                "index with save(path), and pass search= to Guard.load(path, search=...) or "
                "index.searched_by(...). A function of a module can be pickled."
            ) from error

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.find = pickle.loads(state["pickled"])


class ForeignEngine(Engine):
    """Items that a function finds; their order is by our own distances, whatever its scores are.

    Saved as exact search, since the function is not ours to save.

    Parameters
    ----------
    vectors : Tensor [N, d]
        Of the items, in the order of the rows.
    ids : Column [N]
        Of the items.
    find : function
        Queries [Q, d] as a NumPy array, and k -> ids of up to k items for each.
    """

    kind = Flat()
    recall: float = math.nan
    """Share of the 10 nearest of stored vectors that it finds."""

    def __init__(
        self, vectors: Float[Tensor, "N d"], ids: Column, find: Callable[..., Any]
    ) -> None:
        self.vectors, self.find = vectors, OutsideSearch(find)
        self.rows = np.argsort(ids.values)
        self.ids = ids.take(self.rows)

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Ask the function; -1 or "" is no item, another id that no item has is an error.

        Raises
        ------
        InputError
            For anything but ids of up to k items for each query.
        """
        queries = queries.to(self.vectors)
        found = self.find(queries.cpu().numpy(), k)
        if isinstance(found, list):  # of lists, arrays, columns of tables
            found = [own if isinstance(own, list) else np.asarray(own).tolist() for own in found]
        else:
            found = np.asarray(found)
        sizes = np.array([len(own) for own in found]) if np.ndim(found) else np.zeros(0)
        if len(sizes) != len(queries) or sizes.max(initial=0) > k:
            raise InputError(
                f"search returned {len(sizes)} rows of up to {sizes.max(initial=0):.0f} ids: "
                f"return {len(queries)} rows, one for each query, of up to {k}."
            )
        flat = [one for own in found for one in own] if isinstance(found, list) else found.ravel()
        rows = np.full((len(queries), k), -1)
        if len(flat):
            rows[np.arange(k) < sizes[:, None]] = self._rows_of(flat)
        rows.sort(axis=1)  # equal distances in order of position, as exact search
        there = torch.from_numpy(rows).to(self.vectors.device)
        gaps = self.vectors[there.clamp_min(0)] - queries[:, None]
        order = gaps.square().sum(2).masked_fill(there < 0, torch.inf).argsort(dim=1, stable=True)
        return there.gather(1, order)

    def _rows_of(self, found: Any) -> np.ndarray[Any, Any]:
        column = Column.of("ids that search returned", found)
        self.ids.check_like("ids", column)
        at = np.searchsorted(self.ids.values, column.values).clip(max=len(self.ids) - 1)
        known = self.ids.values[at] == column.values
        unknown = ~known & (column.values != ("" if self.ids.is_text else -1))
        if unknown.any():
            raise InputError(
                f"search returned ids {column.values[unknown][:3].tolist()}, which no item has: "
                "pass all items that it holds, with ids= that it returns; without ids= they are "
                f"rows, 0 to {len(self.ids) - 1}."
            )
        return np.where(known, self.rows[at], -1)

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> ForeignEngine:
        """Refuse: the other search would not know of it."""
        raise InputError(
            "this index searches with an engine of yours: change its items there, and build again."
        )


# What a search finds of the vectors that it holds.

CHECKED, NEAREST = 200, 10
"""Stored vectors that a search is asked for, and how many of each, to see that it finds them."""


def spread_rows(n_rows: int, n: int) -> Int[Tensor, " n"]:
    """Return n of the row numbers, or all, evenly spread."""
    return torch.linspace(0, n_rows - 1, min(n, n_rows), dtype=torch.float64).long()


def gaps_of(engine: Engine, vectors: Tensor, n: int, k: int) -> Tensor:
    """Distances [n, k] of what a search finds for n of the vectors [N, D], evenly spread."""
    asked = vectors[spread_rows(len(vectors), n)]
    found = engine.search(asked, min(k, len(vectors))).to(vectors.device)
    gaps = (vectors[found.clamp_min(0)] - asked[:, None]).norm(dim=2)
    return gaps.masked_fill(found < 0, torch.inf)


def shares_found(engine: Engine, exact: Engine, vectors: Tensor) -> tuple[float, float]:
    """Shares of stored vectors [N, D], and of their nearest, that a search finds."""
    gaps, nearest = (gaps_of(each, vectors, CHECKED, NEAREST) for each in (engine, exact))
    itself = gaps[:, 0].square() <= 0.1 * vectors.var(0).sum()
    near = gaps <= 1.001 * nearest[:, -1:]
    return float(itself.double().mean()), float(near.double().mean())
