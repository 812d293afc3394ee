"""Arrays of a FAISS index, and an index from arrays, which are checked before FAISS reads them.

FAISS's own files are not used: they are parsed by native code that follows every number in them. A
saved index holds these arrays next to the embeddings:

    both            keys [N], ascending: what FAISS calls the items; 0 to N - 1 in a graph
    inverted file   centroids [L, d], sizes [L], lists [N, d + 2]: the words of one list after the
                    other, of each first its vectors (float32), then its keys (int64). FAISS
                    searches this layout where it lies in a mapped file.
    graph           levels [N], from 1; neighbours: 2 ``links`` slots of each item for level 0 and
                    ``links`` for each level above, -1 if unused; entry [1], where a search begins.
                    Its vectors are those of the items.

The graph is that of Malkov & Yashunin 2018 (IEEE TPAMI 42(4)), in FAISS's layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.names import utf8_path
from laplace_metric.errors import FileFormatError
from laplace_metric.evaluation._shortlists import require_faiss

Arrays = dict[str, Tensor]
Words = npt.NDArray[np.int32]
Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Place of ``lists``: a file, and the byte at which it begins there."""

    path: Path
    start: int


def floats(vectors: Tensor) -> npt.NDArray[np.float32]:
    """Return vectors as FAISS stores them."""
    return np.ascontiguousarray(vectors.detach().cpu().numpy(), dtype=np.float32)


def arrays_of(index: Any, keys: Keys) -> Arrays:
    """Return copies of the arrays of an index whose items have the ``keys`` [N]."""
    faiss = require_faiss()
    if hasattr(index, "hnsw"):
        graph = index.hnsw
        return {
            "keys": torch.from_numpy(keys),
            "levels": torch.from_numpy(faiss.vector_to_array(graph.levels)),
            "neighbours": torch.from_numpy(faiss.vector_to_array(graph.neighbors)),
            "entry": torch.tensor([graph.entry_point]),
        }
    lists, size = index.invlists, index.d + 2
    sizes = np.array([lists.list_size(number) for number in range(index.nlist)], np.int64)
    words = np.empty((index.ntotal, size), np.int32)
    starts = np.cumsum(sizes) - sizes
    for number in np.flatnonzero(sizes).tolist():
        n, start = int(sizes[number]), int(starts[number])
        flat = words[start : start + n].reshape(-1)
        codes = faiss.rev_swig_ptr(lists.get_codes(number), n * index.d * 4)
        flat[: n * index.d] = codes.view(np.int32)
        flat[n * index.d :] = faiss.rev_swig_ptr(lists.get_ids(number), n).view(np.int32)
    centroids = index.quantizer.reconstruct_n(0, index.nlist)
    return {
        "keys": torch.from_numpy(keys),
        "centroids": torch.as_tensor(centroids),  # a tensor already after faiss.contrib.torch_utils
        "sizes": torch.from_numpy(sizes),
        "lists": torch.from_numpy(words),
    }


def inverted_file(arrays: Arrays, vectors: Float[Tensor, "N d"], place: Place | None = None) -> Any:
    """Return the inverted file of ``arrays`` over the ``vectors``.

    Parameters
    ----------
    place : Place, optional
        Leave the lists in this file: they are not read, so neither their vectors nor their keys
        are checked.

    Raises
    ------
    FileFormatError
        If the arrays do not fit each other, or these items.
    """
    faiss, (n, d) = require_faiss(), vectors.shape
    keys = _array(arrays, "keys", torch.int64, (n,))
    centroids = _array(arrays, "centroids", torch.float32, (len(arrays["centroids"]), d))
    sizes = _array(arrays, "sizes", torch.int64, (len(centroids),))
    words = _array(arrays, "lists", torch.int32, (n, d + 2))
    _check("keys", keys[0] >= 0 and keys[-1] < 2**62 and bool((np.diff(keys) > 0).all()))
    _check("centroids", len(centroids) > 0 and bool(np.isfinite(centroids).all()))
    # the largest first: a sum of larger ones could overflow
    _check("sizes", sizes.min() >= 0 and sizes.max() <= n and sizes.sum() == n)
    quantizer = faiss.IndexFlatL2(d)
    quantizer.add(np.ascontiguousarray(centroids))
    index = faiss.IndexIVFFlat(quantizer, d, len(centroids))
    index.is_trained = True
    if place is not None and hasattr(faiss, "OnDiskInvertedLists"):  # Windows has none
        _map_lists(index, sizes, place)
    else:
        _fill_lists(index, words, sizes, keys, floats(vectors))
    index.ntotal = n
    return index


def _fill_lists(
    index: Any, words: Words, sizes: Keys, keys: Keys, vectors: npt.NDArray[np.float32]
) -> None:
    faiss, seen = require_faiss(), np.zeros(len(keys), bool)
    for number, codes, ids in _entries(words, sizes):
        rows = np.searchsorted(keys, ids).clip(max=len(keys) - 1)
        _check("lists", bool((keys[rows] == ids).all()) and not seen[rows].any())
        _check("lists", np.array_equal(codes, vectors[rows], equal_nan=True))
        seen[rows] = True
        codes, ids = np.ascontiguousarray(codes), np.ascontiguousarray(ids)
        index.invlists.add_entries(
            number, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(codes.view(np.uint8))
        )
    _check("lists", bool(seen.all()))  # an id that comes twice in one list


def _map_lists(index: Any, sizes: Keys, place: Place) -> None:
    faiss = require_faiss()
    lists = faiss.OnDiskInvertedLists()
    lists.nlist, lists.code_size, lists.read_only = index.nlist, index.code_size, True
    start = place.start
    for size in sizes.tolist():
        one = faiss.OnDiskOneList()
        one.size, one.capacity, one.offset = size, size, start
        lists.lists.push_back(one)
        start += size * (index.code_size + 8)
    with utf8_path(place.path) as opened:
        lists.filename, lists.totsize = str(opened), start
        lists.do_mmap()
    lists.this.disown()
    index.replace_invlists(lists, True)


def _entries(words: Words, sizes: Keys) -> Iterator[tuple[int, npt.NDArray[np.float32], Keys]]:
    """Yield number, vectors [n, d] and keys [n] of each list that is not empty."""
    d, starts = words.shape[1] - 2, np.cumsum(sizes) - sizes
    for number in np.flatnonzero(sizes).tolist():
        n, start = int(sizes[number]), int(starts[number])
        flat = words[start : start + n].reshape(-1)
        codes = flat[: n * d].view(np.float32).reshape(n, d)
        yield number, codes, flat[n * d :].view(np.int64)


def graph(arrays: Arrays, vectors: Float[Tensor, "N d"], links: int) -> Any:
    """Return the graph of ``arrays`` over the ``vectors``.

    Raises
    ------
    FileFormatError
        If the arrays do not fit each other, or these items.
    """
    faiss, (n, d) = require_faiss(), vectors.shape
    levels = _array(arrays, "levels", torch.int32, (n,))
    neighbours = _array(arrays, "neighbours", torch.int32, (len(arrays["neighbours"]),))
    entry = int(_array(arrays, "entry", torch.int64, (1,))[0])
    _check("keys", np.array_equal(_array(arrays, "keys", torch.int64, (n,)), np.arange(n)))
    _check("neighbours", 2 * links * n <= len(neighbours))  # before FAISS computes with ``links``
    index = faiss.IndexHNSWFlat(d, links)
    slots = faiss.vector_to_array(index.hnsw.cum_nneighbor_per_level).astype(np.int64)
    _check("levels", levels.min() >= 1 and levels.max() < len(slots))
    offsets = np.concatenate([[0], np.cumsum(slots[levels])])
    _check("neighbours", offsets[-1] == len(neighbours))
    _check("neighbours", neighbours.min() >= -1 and neighbours.max() < n)
    for level in range(1, levels.max()):
        # a search goes on from the slots of this level of the neighbour, so it must have some
        begins = offsets[np.flatnonzero(levels > level), None]
        linked = neighbours[begins + np.arange(slots[level], slots[level + 1])]
        _check("neighbours", bool((levels[linked[linked >= 0]] > level).all()))
    _check("entry", 0 <= entry < n and levels[entry] == levels.max())
    faiss.downcast_index(index.storage).add(floats(vectors))
    index.ntotal = n
    faiss.copy_array_to_vector(levels, index.hnsw.levels)
    faiss.copy_array_to_vector(neighbours, index.hnsw.neighbors)
    faiss.copy_array_to_vector(offsets.astype(np.uint64), index.hnsw.offsets)
    index.hnsw.entry_point, index.hnsw.max_level = entry, int(levels.max()) - 1
    return index


def _array(arrays: Arrays, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    array = arrays[name]
    if array.dtype != dtype or tuple(array.shape) != shape:
        raise FileFormatError(
            f"engine.{name} is {array.dtype} {tuple(array.shape)}, not {dtype} {shape}: build the "
            "index again and save it."
        )
    return array.numpy()


def _check(name: str, fits: bool) -> None:
    if not fits:
        raise FileFormatError(
            f"engine.{name} does not fit the items of this index: build it again and save it."
        )
