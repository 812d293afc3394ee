"""Approximate search by FAISS: an inverted file or a graph, on its GPUs where it has any."""

from __future__ import annotations

import math
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.evaluation.neighbours import require_faiss
from laplace_metric.search.engines._protocol import HNSW, IVF, Engine, EngineHits

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
    source : Path or None
        The file that holds the lists, where they were left on disk.
    """

    def __init__(
        self,
        index: Any,
        keys: npt.NDArray[np.int64],
        kind: IVF | HNSW,
        source: Path | None = None,
    ) -> None:
        self.index, self.keys, self.kind, self.source = index, keys, kind, source
        self.mapped = source is not None
        self._copy: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """In FAISS's own format; lists that were left on disk, by their file."""
        state = {**vars(self), "_copy": None}
        if self.source is None:
            state["index"] = require_faiss().serialize_index(self.index)
        else:
            del state["index"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.source is None:
            self.index = require_faiss().deserialize_index(self.index)
        else:
            keys = torch.from_numpy(self.keys)
            self.index = FaissEngine.read(self.source, keys, self.kind, mapped=True).index

    @classmethod
    def build(cls, vectors: Float[Tensor, "N d"], kind: IVF | HNSW) -> FaissEngine:
        """Train and fill one."""
        faiss, data = require_faiss(), _floats(vectors)
        index = _ivf(faiss, data, kind) if isinstance(kind, IVF) else _hnsw(faiss, data, kind)
        return cls(index, np.arange(len(data)), kind)

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> EngineHits:
        """On the GPUs where FAISS can."""
        with nullcontext() if self._searcher is self.index else _GPUS:
            squared, keys = self._searcher.search(_floats(queries), k)
        positions = np.where(keys < 0, -1, np.searchsorted(self.keys, keys))
        squared = np.where(keys < 0, np.inf, squared)
        return EngineHits(
            torch.as_tensor(positions, device=queries.device),
            torch.as_tensor(squared, dtype=queries.dtype, device=queries.device),
        )

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
            new = _floats(vectors[len(self.keys) :])
            keys = np.arange(len(new)) + (int(self.keys[-1]) + 1)
            _add(index, new, keys)
            return FaissEngine(index, np.concatenate([self.keys, keys]), self.kind)
        rows = remaining.cpu().numpy()
        index.remove_ids(np.delete(self.keys, rows))
        return FaissEngine(index, self.keys[rows], self.kind)

    def write(self, path: Path) -> None:
        """In FAISS's own format."""
        if self.source is not None:  # FAISS would write a reference to that file
            shutil.copyfile(self.source, path)
        else:
            require_faiss().write_index(self.index, str(path))

    @classmethod
    def read(cls, path: Path, keys: Tensor, kind: IVF | HNSW, *, mapped: bool) -> FaissEngine:
        """What ``write`` wrote; ``mapped`` leaves the lists of an inverted file on disk.

        Raises
        ------
        FileFormatError
            If it is no FAISS index, or one of another size.
        """
        faiss = require_faiss()
        flags = faiss.IO_FLAG_MMAP if mapped and isinstance(kind, IVF) else 0
        try:
            index = faiss.read_index(str(path), flags)
        except (RuntimeError, MemoryError) as error:  # it claims more than there is
            raise FileFormatError(f"{path} is not a FAISS index: {error}.") from error
        if index.ntotal != len(keys):
            raise FileFormatError(f"{path} holds {index.ntotal} vectors, the index {len(keys)}.")
        engine = cls(index, keys.numpy(), kind, path if mapped else None)
        engine._set_effort()
        return engine

    def _set_effort(self) -> None:
        if isinstance(self.kind, IVF):
            self.index.nprobe = _probes(self.kind, self.index.nlist)
        else:
            self.index.hnsw.efSearch = self.kind.ef


def _floats(vectors: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(vectors.detach().cpu().numpy(), dtype=np.float32)


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
    index.nprobe = _probes(kind, lists)
    return index


def _probes(kind: IVF, lists: int) -> int:
    return min(lists, max(8, lists // 8)) if kind.probes is None else min(lists, kind.probes)


def _hnsw(faiss: Any, data: npt.NDArray[np.float32], kind: HNSW) -> Any:
    index = faiss.IndexHNSWFlat(data.shape[1], kind.links)
    index.hnsw.efSearch = kind.ef
    index.add(data)
    return index


def _add(index: Any, data: npt.NDArray[np.float32], keys: npt.NDArray[np.int64]) -> None:
    """A graph has no keys of its own: they are its positions."""
    if hasattr(index, "hnsw"):
        index.add(data)
    else:
        index.add_with_ids(data, keys)
