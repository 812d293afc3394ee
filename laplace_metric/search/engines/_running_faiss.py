"""A FAISS index of the user as a search: it goes on running, and is checked for changes.

A guarantee is about what the index found when it calibrated. Whatever of it decides what it finds
(``nprobe``, ``efSearch``, ``k_factor``, those of its quantizer, the number of its vectors) is
noted, also of the indexes inside it, and compared at each search. So are two of its vectors: the
last one, which moves where others were removed, and one of 200 in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from laplace_metric.errors import InputError
from laplace_metric.search.engines._found_shares import CHECKED, spread_rows

INDEXES = ("index", "quantizer", "storage", "base_index", "refine_index")
"""Attributes that hold an index inside an index."""
PARTS = ("hnsw", "nsg", "nndescent")
"""Attributes that hold parameters of their own."""
HARMLESS = {
    "thisown",
    "verbose",
    "is_trained",
    "efConstruction",
    "parallel_mode",
    "use_visited_hashset",  # a std::optional, at which Python's wrapper warns of a leak
    "rev_map",  # as this std::unordered_map
}
"""Attributes that do not change which vectors are found, nor do those that say who owns memory."""

GROWS = ("ntotal", "ntotal2", "entry_point", "max_level")
"""Ends of the names of what changes where vectors are added or removed."""

Parameters = dict[str, int | float | bool | str]
"""By their place in the index, such as ``quantizer.hnsw.efSearch``."""


class RunningFaiss:
    """Search of a FAISS index.

    Parameters
    ----------
    index : faiss.Index
        Index that searches; it is not copied.
    ids : [N]
        Ids of its vectors, in their order; not used for an ``IndexIDMap``, which returns its own.

    Raises
    ------
    InputError
        For an inverted file with ids of its own; when asked, if the index is no longer as it was.
    """

    def __init__(self, index: Any, ids: np.ndarray[Any, Any]) -> None:
        check_own_ids(index)
        self.index, self.ids = index, ids
        self.noted = parameters_of(index)
        rows = spread_rows(len(ids), CHECKED).numpy()
        self.stored = StoredRows.of(index, rows, ids[rows])
        self.asked = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled search; FAISS may give an index inside another one a simpler type.

        Raises
        ------
        InputError
            If FAISS did not keep a parameter.
        """
        vars(self).update(state)
        now = parameters_of(self.index)
        for name in now.keys() & self.noted.keys():
            if now[name] != self.noted[name] and not name.endswith("type"):
                raise InputError(
                    f"FAISS lost {name}={self.noted[name]} of a pickled index, which has "
                    f"{now[name]}: use guard.save(path), and Guard.load(path, search=index) with "
                    "the index itself."
                )
        self.noted = now

    def __call__(self, queries: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
        """Return ids [Q, k] of the nearest; -1 or "" where it finds fewer."""
        self.check()
        if queries.shape[1] != self.index.d:
            raise InputError(
                f"search is a FAISS index of vectors of {self.index.d} numbers, and is asked for "
                f"vectors of {queries.shape[1]}: pass the index of these embeddings."
            )
        found: np.ndarray[Any, Any] = self.index.search(queries.astype(np.float32), k)[1]
        if hasattr(self.index, "id_map"):
            return found
        return np.where(found < 0, "" if self.ids.dtype == object else -1, self.ids[found])

    def check(self) -> None:
        """Refuse an index that has changed since it was noted.

        Raises
        ------
        InputError
            With the parameter, what it was and what it is.
        """
        if self.index.ntotal != len(self.ids):
            raise InputError(
                f"the FAISS index holds {self.index.ntotal:,} vectors, the guard knows "
                f"{len(self.ids):,}: pass new ones to guard.add(vectors, labels), or guard it "
                "again."
            )
        self._check_parameters(grown=False)
        self._check_rows()

    def _check_rows(self) -> None:
        self.asked += 1  # of two threads one may not count, and both check the same row
        for place in (-1, self.asked % max(1, len(self.stored))):
            if not self.stored.is_there(self.index, place):
                which = f"{self.stored.what} {self.stored.names[place]}"
                raise InputError(
                    f"the FAISS index no longer has the vector that was {which} when it "
                    "calibrated: rows move where vectors are removed, and an index that was filled "
                    "again has others. Guard it again."
                )

    def _check_parameters(self, *, grown: bool) -> None:
        now = parameters_of(self.index)
        for name in [*self.noted, *(name for name in now if name not in self.noted)]:
            then, is_now = self.noted.get(name), now.get(name)
            if then != is_now and not (grown and name.endswith(GROWS)):
                raise InputError(
                    f"the FAISS index has {name}={is_now}, and had {name}={then} when it "
                    "calibrated: it finds other vectors, for which nothing is guaranteed. Put "
                    f"{name}={then} back, or guard the index again."
                )

    def ids_of_new(self, ids: Any) -> Any:
        """Return the ids of vectors that were or will be added behind the known ones.

        Parameters
        ----------
        ids : [n] whole numbers, or None
            Ids that were given; None: those of an ``IndexIDMap`` that has the vectors already.

        Raises
        ------
        InputError
            For other ids than the ``IndexIDMap`` has.
        """
        if not hasattr(self.index, "id_map") or self.index.ntotal == len(self.ids):
            return ids
        import faiss

        own = faiss.vector_to_array(self.index.id_map)[len(self.ids) :]
        if ids is not None and not np.array_equal(np.asarray(ids), own):
            raise InputError(
                f"ids are {np.asarray(ids)[:3].tolist()}, ...; the FAISS index has "
                f"{own[:3].tolist()}, ... for its new vectors: pass those, or leave ids= out."
            )
        return own

    def grown(self, vectors: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> RunningFaiss:
        """Return the search with new vectors, which are added to the index if it has not got them.

        Parameters
        ----------
        vectors : [n, d]
            Vectors that are added, in the order of their ids.
        ids : [N + n]
            Ids of all vectors, the new ones last.

        Raises
        ------
        InputError
            For an index that has other vectors, has changed otherwise, or takes no more.
        """
        n_now = self.index.ntotal
        if n_now not in (len(self.ids), len(ids)):
            raise InputError(
                f"the FAISS index holds {n_now:,} vectors; the guard knew {len(self.ids):,} and is "
                f"told of {len(vectors):,} more: pass exactly those that were added to it."
            )
        if n_now == len(self.ids):
            self.check()
            rows = np.ascontiguousarray(vectors, dtype=np.float32)
            try:
                if hasattr(self.index, "id_map"):
                    self.index.add_with_ids(rows, ids[n_now:].astype(np.int64))
                else:
                    self.index.add(rows)
            except RuntimeError as error:
                raise InputError(f"the FAISS index takes no more vectors: {error}") from error
        else:
            self._check_rows()
        self._check_parameters(grown=True)
        return RunningFaiss(self.index, ids)

    def shrunk(self, remaining: np.ndarray[Any, Any]) -> RunningFaiss:
        """Return the search without some vectors, which are removed if the index has them still.

        Parameters
        ----------
        remaining : [n]
            Rows of the vectors that remain, ascending.

        Raises
        ------
        InputError
            For an index that has other vectors, has changed otherwise, or whose other vectors would
            not move up to the places of the removed ones: an inverted file leaves gaps, a graph
            removes nothing.
        """
        n_now, known = self.index.ntotal, len(self.ids)
        if n_now not in (known, len(remaining)):
            raise InputError(
                f"the FAISS index holds {n_now:,} vectors; the guard knew {known:,} and is told "
                f"that {known - len(remaining):,} go: remove exactly those."
            )
        if n_now == known:
            self.check()
            _check_moves_up(self.index)
            rows = np.delete(np.arange(known), remaining)
            mapped = hasattr(self.index, "id_map")
            self.index.remove_ids((self.ids[rows] if mapped else rows).astype(np.int64))
        self._check_remaining(remaining)
        self._check_parameters(grown=True)
        return RunningFaiss(self.index, self.ids[remaining])

    def _check_remaining(self, remaining: np.ndarray[Any, Any]) -> None:
        """Compare the noted vectors that remain with those at their new places."""
        if not len(self.stored):
            return
        noted = spread_rows(len(self.ids), CHECKED).numpy()
        places = np.searchsorted(remaining, noted).clip(max=len(remaining) - 1)
        kept = remaining[places] == noted
        if not kept.any():
            return
        places, ids = places[kept], self.ids[noted[kept]]
        now = StoredRows.of(self.index, places, ids).vectors
        if not np.array_equal(now, self.stored.vectors[kept]):
            raise InputError(
                "the FAISS index has lost other vectors than those that are removed here: fill it "
                "again and guard it again."
            )


def _check_moves_up(index: Any) -> None:
    """Refuse to remove vectors of an index whose others would not move up to their places."""
    import faiss

    inner = faiss.downcast_index(inner_index(index))
    if not isinstance(inner, faiss.IndexFlatCodes):
        raise InputError(
            f"the FAISS index is an {type(inner).__name__}, from which vectors cannot be removed "
            "so that the others move up. Build it again without them and guard that."
        )


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Some vectors of a FAISS index, and what the index gives for them.

    It gives the vectors themselves, or, where it cannot, the nearest row of each.

    Parameters
    ----------
    what : str
        Noun for the names: "id" or "row".
    names : [n]
        Ids of the rows in the index, or their numbers.
    vectors : [n, d]
        Vectors of the rows, as the index holds them; empty if it gives none.
    found : [n] or None
        Names of the nearest rows of ``vectors``; None: the index gives the vectors.
    """

    what: str
    names: np.ndarray[Any, Any]
    vectors: np.ndarray[Any, Any]
    found: np.ndarray[Any, Any] | None

    @classmethod
    def of(cls, index: Any, rows: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> StoredRows:
        """Read rows [n] with these ids."""
        what, names = ("id", ids) if hasattr(index, "id_map") else ("row", rows)
        try:
            return cls(
                what, names, np.stack([index.reconstruct(int(name)) for name in names]), None
            )
        except (RuntimeError, ValueError):  # an inverted file, or one that has no such row
            inner = inner_index(index)
        try:
            vectors = np.concatenate([inner.reconstruct_n(int(row), 1) for row in rows])
        except (RuntimeError, ValueError):
            return cls(what, names[:0], np.zeros((0, index.d), np.float32), None)
        return cls(what, names, vectors, np.array([_nearest(index, vector) for vector in vectors]))

    def __len__(self) -> int:
        return len(self.vectors)

    def is_there(self, index: Any, place: int) -> bool:
        """Return whether the index still gives the same for the row at a place; True for none."""
        if not len(self):
            return True
        vector = self.vectors[place]
        if self.found is not None:
            return bool(_nearest(index, vector) == self.found[place])
        try:
            return bool(np.array_equal(index.reconstruct(int(self.names[place])), vector))
        except RuntimeError:
            return False


def _nearest(index: Any, vector: np.ndarray[Any, Any]) -> int:
    return int(index.search(vector[None], 1)[1][0, 0])


def inner_index(index: Any) -> Any:
    """Return the index inside an ``IndexIDMap``; any other one as it is."""
    import faiss

    return faiss.downcast_index(index.index) if hasattr(index, "id_map") else index


def parameters_of(index: Any) -> Parameters:
    """Return all that decides what a FAISS index finds, but its vectors.

    Examples
    --------
    >>> import faiss
    >>> parameters_of(faiss.IndexHNSWFlat(4, 8))["hnsw.efSearch"]
    16
    """
    return dict(_walk(index, ""))


def _walk(index: Any, place: str) -> Iterator[tuple[str, int | float | bool | str]]:
    yield f"{place}type", type(index).__name__
    yield from _numbers(index, place)
    for name in PARTS:
        if hasattr(index, name):
            yield from _numbers(getattr(index, name), f"{place}{name}.")
    for name, inner in _inside(index):
        yield from _walk(inner, f"{place}{name}.")


def _inside(index: Any) -> Iterator[tuple[str, Any]]:
    """Yield indexes inside an index by their types; it must live as long as they are used."""
    import faiss

    found = {name: getattr(index, name, None) for name in INDEXES}
    if hasattr(index, "count") and hasattr(index, "at"):  # shards, replicas
        found |= {f"at({i})": index.at(i) for i in range(index.count())}
    for name, inner in found.items():
        if isinstance(inner, faiss.Index):
            yield name, faiss.downcast_index(inner)


def _numbers(part: Any, place: str) -> Iterator[tuple[str, int | float | bool]]:
    for name in _names(part):
        yield place + name, getattr(part, name)


_NAMES: dict[type, list[str]] = {}
"""Names of the numbers of a kind of index, found once: they are asked for at each search."""


def _names(part: Any) -> list[str]:
    kind = type(part)
    if kind not in _NAMES:
        properties = [n for n in dir(kind) if isinstance(getattr(kind, n, None), property)]
        asked = [n for n in properties if n not in HARMLESS and not n.startswith(("_", "own_"))]
        _NAMES[kind] = [n for n in asked if isinstance(getattr(part, n), (bool, int, float))]
    return _NAMES[kind]


def check_is_faiss(index: Any) -> None:
    """Refuse what is not a FAISS index, and an index without vectors.

    Raises
    ------
    InputError
        For both.
    """
    if not hasattr(index, "ntotal") or not hasattr(index, "reconstruct_n"):
        raise InputError(f"index is a {type(index).__name__}: pass a FAISS index, or use search=.")
    if not index.ntotal:
        raise InputError(
            "index is empty: add its vectors first, index.add(vectors), then pass a label for each."
        )


def check_vectors_of(index: Any, vectors: Any) -> None:
    """Refuse vectors [N, D] of another number or width than those that a FAISS index holds.

    Raises
    ------
    InputError
        With both shapes.
    """
    if tuple(vectors.shape) != (index.ntotal, index.d):
        raise InputError(
            f"vectors= has shape {list(vectors.shape)}, and the index holds "
            f"[{index.ntotal}, {index.d}]: pass the vectors that were added to it, in their order."
        )


def stored_vectors(index: Any) -> np.ndarray[Any, Any]:
    """Return the vectors [N, D] that a FAISS index holds, in the order of its rows.

    Raises
    ------
    InputError
        For what is no such index, and compressed vectors.
    """
    import faiss

    check_is_faiss(index)
    codes = faiss.downcast_index(index.storage) if hasattr(index, "storage") else index
    if codes.sa_code_size() < 4 * index.d:
        raise InputError(
            f"index stores {index.d} numbers in {codes.sa_code_size()} bytes: pass the vectors "
            "themselves, vectors=."
        )
    found: np.ndarray[Any, Any] = index.reconstruct_n(0, index.ntotal)
    return found


def check_own_ids(index: Any) -> None:
    """Refuse an inverted file whose ids are not those from 0 to N - 1, each once.

    Parameters
    ----------
    index : faiss.Index
        Any index; one that has no inverted file passes.

    Raises
    ------
    InputError
        For ids that stand twice, and larger ones, that it was given.
    """
    import faiss

    file = faiss.try_extract_index_ivf(inner_index(index))
    if file is None:
        return
    ids = np.concatenate([_list_of_ids(file.invlists, number) for number in range(file.nlist)])
    named, count = np.unique(ids, return_counts=True)
    if twice := named[count > 1][:3].tolist():
        raise InputError(
            f"index has ids that stand more than once, {twice} among them, as after remove_ids and "
            "add, which goes on from the number of vectors: fill it again, or add with ids of your "
            "own, add_with_ids."
        )
    if (largest := int(named.max(initial=-1))) >= index.ntotal:
        raise InputError(
            f"index has ids of its own, up to {largest} for {index.ntotal} vectors: pass "
            "Guard(vectors, labels, ids=ids, search=lambda q, k: index.search(q, k)[1])."
        )


def _list_of_ids(lists: Any, number: int) -> np.ndarray[Any, Any]:
    """Copy the ids of one list of an inverted file."""
    import faiss

    size = lists.list_size(number)
    if not size:
        return np.zeros(0, np.int64)
    found: np.ndarray[Any, Any] = faiss.rev_swig_ptr(lists.get_ids(number), size).copy()
    return found
