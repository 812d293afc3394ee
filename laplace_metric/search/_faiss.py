"""Approximate search by FAISS: an inverted file or a graph, on its GPUs where it has any."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError, UnknownNameError
from laplace_metric.evaluation._candidates import require_faiss
from laplace_metric.search._engines import (
    HNSW,
    IVF,
    Engine,
    EngineKind,
    Flat,
    FlatEngine,
)
from laplace_metric.search._faiss_arrays import (
    Place,
    arrays_of,
    floats,
    graph,
    inverted_file,
    stored_vectors,
)

_GPUS = threading.Lock()
"""FAISS runs one search at a time on its GPUs; on the CPU, as many as there are threads."""
VECTORS_PER_LIST = 39
"""That FAISS wants to train on."""


class FaissEngine(Engine):
    """A FAISS index over vectors [N, d] in float32.

    Positions are rows of the vectors; ``keys`` [N], ascending, are what FAISS calls them, so that
    removing items leaves the others where they are in its lists. The index itself stays in main
    memory, where it can be changed; its copy on the GPUs searches.

    Parameters
    ----------
    mapped : bool
        Whether the vectors of the items were left on disk, so that none can change.
    place : Place, optional
        Where the lists were left on disk.
    """

    def __init__(
        self,
        index: Any,
        keys: npt.NDArray[np.int64],
        kind: IVF | HNSW,
        *,
        mapped: bool = False,
        place: Place | None = None,
    ) -> None:
        self.index, self.keys, self.kind, self.mapped = index, keys, kind, mapped
        self.place = place
        self._copy: Any = None
        if isinstance(kind, IVF):
            index.nprobe = _probes(kind, index.nlist)
        else:  # FAISS reserves memory for as many
            index.hnsw.efSearch = min(kind.ef, index.ntotal)

    def __getstate__(self) -> dict[str, Any]:
        """Arrays; a copy has its lists in memory."""
        return {"arrays": self.arrays(), "vectors": self.vectors, "kind": self.kind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(FaissEngine.restored(**state)))

    @classmethod
    def build(cls, vectors: Float[Tensor, "N d"], kind: IVF | HNSW) -> FaissEngine:
        """Train and fill one."""
        faiss, data = require_faiss(), floats(vectors)
        index = _ivf(faiss, data, kind) if isinstance(kind, IVF) else _hnsw(faiss, data, kind)
        return cls(index, np.arange(len(data)), kind)

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Search on the GPUs where FAISS can."""
        with nullcontext() if self._searcher is self.index else _GPUS:
            _, keys = self._searcher.search(floats(queries), k)
        positions = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        if self.place is not None and ((keys >= 0) & (self.keys[positions] != keys)).any():
            raise FileFormatError(
                f"{self.place.path} is damaged: its lists hold keys of no item. Build the index "
                "again and save it."
            )
        return torch.as_tensor(np.where(keys < 0, -1, positions), device=queries.device)

    @property
    def _searcher(self) -> Any:
        """The index, or its copy on all GPUs that FAISS can use for its kind."""
        faiss = require_faiss()
        if self.mapped or isinstance(self.kind, HNSW) or faiss.get_num_gpus() == 0:
            return self.index
        with _GPUS:
            if self._copy is None:
                self._copy = faiss.index_cpu_to_all_gpus(self.index)
        return self._copy

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> FaissEngine:
        """A copy with items added or removed: searches may go on in this one meanwhile.

        A graph is built again without the items that are removed.
        """
        if remaining is not None and isinstance(self.kind, HNSW):
            return FaissEngine.build(vectors, self.kind)
        index = require_faiss().clone_index(self.index)
        if remaining is None:
            new = floats(vectors[len(self.keys) :])
            keys = np.arange(len(new)) + (int(self.keys[-1]) + 1)
            _add(index, new, keys)
            return FaissEngine(index, np.concatenate([self.keys, keys]), self.kind)
        rows = remaining.cpu().numpy()
        index.remove_ids(np.delete(self.keys, rows))
        return FaissEngine(index, self.keys[rows], self.kind)

    @property
    def vectors(self) -> Float[Tensor, "N d"]:
        """A copy of the vectors [N, d]."""
        return stored_vectors(self.index, self.keys)

    def arrays(self) -> dict[str, Tensor]:
        """Return what ``restored`` needs, except the vectors."""
        return arrays_of(self.index, self.keys)

    @classmethod
    def restored(
        cls,
        arrays: dict[str, Tensor],
        vectors: Float[Tensor, "N d"],
        kind: IVF | HNSW,
        *,
        mapped: bool = False,
        place: Place | None = None,
    ) -> FaissEngine:
        """Return the engine of ``arrays``; with ``place``, its lists stay in that file.

        Raises
        ------
        FileFormatError
            If ``arrays`` are not those of an engine over ``vectors``.
        """
        if isinstance(kind, IVF):
            index = inverted_file(arrays, vectors, place)
        else:
            index = graph(arrays, vectors, kind.links)
        return cls(index, arrays["keys"].numpy(), kind, mapped=mapped, place=place)


def _ivf(faiss: Any, data: npt.NDArray[np.float32], kind: IVF) -> Any:
    n, d = data.shape
    most = max(1, n // VECTORS_PER_LIST)
    lists = min(most, round(4 * math.sqrt(n))) if kind.lists is None else kind.lists
    if lists > n:
        raise InputError(f"IVF: lists={lists} for {n} items: pass at most {n}, or None.")
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, lists)
    index.cp.min_points_per_centroid = min(VECTORS_PER_LIST, n // lists)
    index.train(data)
    _add(index, data, np.arange(n))
    return index


def _probes(kind: IVF, lists: int) -> int:
    return min(lists, max(8, lists // 8)) if kind.probes is None else min(lists, kind.probes)


def _hnsw(faiss: Any, data: npt.NDArray[np.float32], kind: HNSW) -> Any:
    index = faiss.IndexHNSWFlat(data.shape[1], kind.links)
    index.add(data)
    return index


def _add(index: Any, data: npt.NDArray[np.float32], keys: npt.NDArray[np.int64]) -> None:
    """A graph has no keys of its own: they are its positions."""
    if hasattr(index, "hnsw"):
        index.add(data)
    else:
        index.add_with_ids(data, keys)


# The nearest of the items that are left when some are passed over, others for each query.


CELLS = 2**24
"""Of (query, candidate) pairs that are looked through at once."""
PassedOver = Callable[[Int[Tensor, "q m"], slice], Bool[Tensor, "q m"]]
"""Which of the rows [q, m], or -1, that a slice of the queries found are to be passed over."""


@dataclass(frozen=True)
class WithoutSome:
    """The search of an engine that finds as many items more as may be passed over.

    Parameters
    ----------
    engine : Engine
    passed_over : function
    most : int
        Items that are passed over for a query, at the most.
    n_items : int
    """

    engine: Engine
    passed_over: PassedOver
    most: int
    n_items: int

    def __call__(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the nearest of queries [Q, d]; -1 behind them where fewer than k are left."""
        depth = min(self.n_items, k + self.most)
        step = max(1, CELLS // depth)
        slices = [slice(i, i + step) for i in range(0, max(1, len(queries)), step)]
        parts = [self._left(self.engine.search(queries[part], depth), part, k) for part in slices]
        return torch.cat(parts)

    def _left(self, rows: Tensor, part: slice, k: int) -> Tensor:
        gone = self.passed_over(rows, part)
        order = gone.to(torch.uint8).argsort(dim=1, stable=True)[:, :k]  # those left come first
        return rows.gather(1, order).masked_fill(gone.gather(1, order), -1)


# Engines from the values that name them, and these as JSON.


KINDS: dict[str, type[EngineKind]] = {"flat": Flat, "ivf": IVF, "hnsw": HNSW}


def kind_of(engine: str | EngineKind) -> EngineKind:
    """``"flat"``, ``"ivf"`` and ``"hnsw"`` are the kinds with their defaults.

    Raises
    ------
    UnknownNameError
        For anything else.

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


def build(vectors: Float[Tensor, "N d"], kind: EngineKind, *, mapped: bool = False) -> Engine:
    """An engine over vectors [N, d]."""
    if isinstance(kind, Flat):
        return FlatEngine(vectors, kind, mapped=mapped)
    return FaissEngine.build(vectors, kind)


def kind_to_json(kind: EngineKind) -> dict[str, Any]:
    """Its name and its numbers."""
    name = next(name for name, of in KINDS.items() if isinstance(kind, of))
    return {"name": name, **asdict(kind)}


def kind_from_json(content: dict[str, Any]) -> EngineKind:
    """Read the result of ``kind_to_json``.

    Raises
    ------
    FileFormatError
        For an unknown kind.
    """
    numbers = dict(content)
    name = numbers.pop("name", None)
    if name not in KINDS:
        raise FileFormatError(f"engine {name!r} is not known: {', '.join(KINDS)} are.")
    return KINDS[name](**numbers)
