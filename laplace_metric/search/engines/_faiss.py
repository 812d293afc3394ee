"""Approximate search by FAISS: an inverted file or a graph, in main memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.evaluation._shortlists import require_faiss
from laplace_metric.search.engines._engine import HNSW, IVF, Engine
from laplace_metric.search.engines._faiss_arrays import (
    Place,
    arrays_of,
    floats,
    graph,
    inverted_file,
)

VECTORS_PER_LIST = 39
"""Vectors of each list that FAISS wants to be trained on."""


class FaissEngine(Engine):
    """A FAISS index over vectors [N, d] in float32.

    Positions are rows of the vectors; ``keys`` [N], ascending, are what FAISS calls them, so that
    removing items leaves the others where they are in its lists.

    Parameters
    ----------
    mapped : bool
        True if the vectors of the items were left on disk, so that none can change.
    place : Place, optional
        Place of the lists in a file, if they were left on disk.
    """

    kind: IVF | HNSW

    def __init__(
        self,
        index: Any,
        vectors: Float[Tensor, "N d"],
        keys: npt.NDArray[np.int64],
        kind: IVF | HNSW,
        *,
        mapped: bool = False,
        place: Place | None = None,
    ) -> None:
        self.index, self.vectors, self.keys, self.kind = index, vectors, keys, kind
        self.mapped, self.place = mapped, place
        if isinstance(kind, IVF):
            probes = max(8, index.nlist // 8) if kind.probes is None else kind.probes
            index.nprobe = min(index.nlist, probes)
        else:  # FAISS reserves memory for as many
            index.hnsw.efSearch = min(kind.ef, index.ntotal)

    def __getstate__(self) -> dict[str, Any]:
        """Return arrays; a copy has its lists in memory."""
        return {"arrays": self.arrays(), "vectors": self.vectors, "kind": self.kind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(FaissEngine.restored(**state)))

    @classmethod
    def build(cls, vectors: Float[Tensor, "N d"], kind: IVF | HNSW) -> FaissEngine:
        """Train and fill an index."""
        faiss, data = require_faiss(), floats(vectors)
        n, d = data.shape
        if isinstance(kind, HNSW):
            index = faiss.IndexHNSWFlat(d, kind.links)
        else:
            most = max(1, n // VECTORS_PER_LIST)
            lists = min(most, round(4 * math.sqrt(n))) if kind.lists is None else kind.lists
            if lists > n:
                raise InputError(f"IVF: lists={lists} for {n} items: pass at most {n}, or None.")
            index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, lists)
            index.cp.min_points_per_centroid = min(VECTORS_PER_LIST, n // lists)
            index.train(data)
        index.add(data)
        return cls(index, vectors, np.arange(n), kind)

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return rows of the vectors; -1 where FAISS finds fewer than k."""
        _, keys = self.index.search(floats(queries), k)
        positions = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        if self.place is not None and ((keys >= 0) & (self.keys[positions] != keys)).any():
            raise FileFormatError(
                f"{self.place.path} is damaged: its lists hold keys of no item. Build the index "
                "again and save it."
            )
        return torch.as_tensor(np.where(keys < 0, -1, positions), device=queries.device)

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> FaissEngine:
        """Return a copy with items added or removed; searches may go on in this one.

        A graph is built again without the items that are removed.
        """
        if remaining is not None and isinstance(self.kind, HNSW):
            return FaissEngine.build(vectors, self.kind)
        index = require_faiss().clone_index(self.index)
        if remaining is not None:
            rows = remaining.cpu().numpy()
            index.remove_ids(np.delete(self.keys, rows))
            return FaissEngine(index, vectors, self.keys[rows], self.kind)
        new = floats(vectors[len(self.keys) :])
        keys = np.arange(len(new)) + (int(self.keys[-1]) + 1)
        if isinstance(self.kind, HNSW):  # which has no keys of its own: they are its positions
            index.add(new)
        else:
            index.add_with_ids(new, keys)
        return FaissEngine(index, vectors, np.concatenate([self.keys, keys]), self.kind)

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
        return cls(index, vectors, arrays["keys"].numpy(), kind, mapped=mapped, place=place)
