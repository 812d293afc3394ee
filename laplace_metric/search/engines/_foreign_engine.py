"""A search that runs elsewhere, over the same items, and the ids that it returns."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import blocks
from laplace_metric.errors import InputError
from laplace_metric.inputs._arrays import read_list
from laplace_metric.inputs._columns import Column
from laplace_metric.search.engines._engine import Engine, Flat, FlatEngine
from laplace_metric.search.engines._found_shares import CHECKED, NEAREST, shares_found, spread_rows
from laplace_metric.search.engines._running_faiss import RunningFaiss

LEAST_FOUND = 0.5
"""Share of the items that a search must find when it is asked for them."""
WANTED = "return a list of ids for each query, up to k, or an array [Q, k]"


class OutsideSearch:
    """A function that searches elsewhere: copies share it, and it is pickled if it can be.

    Parameters
    ----------
    find : function
        The function that ``ForeignEngine`` asks.
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
        Vectors of the items, in the order of the rows.
    ids : Column [N]
        Ids of the items.
    find : function
        Function of queries [Q, d], a NumPy array, and k that returns the ids of up to k items for
        each.
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
        """Search by the function; -1 or "" is no item, another id that no item has is an error.

        Raises
        ------
        InputError
            If the function does not return ids of up to k items for each query.
        """
        queries = queries.to(self.vectors)
        found = self.find(queries.cpu().numpy(), k)
        sizes, ids = read_found_ids(found, len(queries), k)
        rows = np.full((len(queries), k), -1)
        if len(ids):
            rows[np.arange(k) < sizes[:, None]] = self._rows_of(ids)
        rows.sort(axis=1)  # equal distances in order of position, as exact search
        twice = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)
        if twice.any():
            again = np.unique(rows[:, 1:][twice])[:3]
            raise InputError(
                f"search returned ids more than once for one query, "
                f"{self.ids.values[np.argsort(self.rows)[again]].tolist()} among them: return each "
                "item once (a FAISS index from which vectors were removed may hold an id twice)."
            )
        there = torch.from_numpy(rows).to(self.vectors.device)
        squared = torch.empty(there.shape, dtype=queries.dtype, device=there.device)
        for block in blocks(len(there), k * self.vectors[:1].nbytes):
            gaps = self.vectors[there[block].clamp_min(0)] - queries[block, None]
            squared[block] = gaps.square().sum(2)
        order = squared.masked_fill(there < 0, torch.inf).argsort(dim=1, stable=True)
        return there.gather(1, order)

    def _rows_of(self, column: Column) -> np.ndarray[Any, Any]:
        self.ids.check_like("ids", column)
        at = np.searchsorted(self.ids.values, column.values).clip(max=len(self.ids) - 1)
        known = self.ids.values[at] == column.values
        unknown = ~known & (column.values != ("" if self.ids.is_text else -1))
        if unknown.any():
            raise InputError(
                f"search returned ids {column.values[unknown][:3].tolist()}, which no item has: "
                "pass all items that it holds, with ids= that it returns, and new ones to "
                f"guard.add(...); without ids= they are rows, 0 to {len(self.ids) - 1}."
            )
        return np.where(known, self.rows[at], -1)

    def updated(
        self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None
    ) -> ForeignEngine:
        """Return the search over the remaining items, or with new ones behind."""
        raise NotImplementedError("grown and shrunk know the ids of the items.")

    def ids_of_new(self, ids: Any) -> Any:
        """Return the ids of items that are added: those of a FAISS index that has them, or given.

        Raises
        ------
        InputError
            For other ids than those that the FAISS index has.
        """
        find = self.find.find
        return find.ids_of_new(ids) if isinstance(find, RunningFaiss) else ids

    def grown(self, vectors: Float[Tensor, "N d"], ids: Column) -> ForeignEngine:
        """Return the search over these items, of which those behind the present ones are new.

        A FAISS index is given them, unless it has them; any other search must find them.

        Parameters
        ----------
        vectors : Tensor [N, d]
            Vectors of all items, the new ones last.
        ids : Column [N]
            Ids of all items.

        Raises
        ------
        InputError
            If the search does not find the new items.
        """
        find, known = self.find.find, len(self.vectors)
        engine = ForeignEngine(vectors, ids, find)
        if isinstance(find, RunningFaiss):
            new = vectors[known:].cpu().numpy()
            engine.find = OutsideSearch(find.grown(new, ids.values))
        rows = known + spread_rows(len(vectors) - known, CHECKED)
        asked = vectors[rows.to(vectors.device)]
        found = engine.search(asked, min(NEAREST, len(vectors))).cpu() == rows[:, None]
        share = float(found.any(1).double().mean())
        if share < LEAST_FOUND:
            raise InputError(
                f"this index searches with an engine of yours, which finds {share:.0%} of the new "
                f"items that it is asked for: add them there first, where it returns their ids "
                f"({', '.join(map(repr, ids.values[known:][:3].tolist()))}, ...), then here."
            )
        engine.recall = shares_found(engine, FlatEngine(vectors, Flat()), vectors)[1]
        return engine

    def shrunk(
        self, vectors: Float[Tensor, "n d"], ids: Column, remaining: Int[Tensor, " n"]
    ) -> ForeignEngine:
        """Return the search over the items that remain.

        The others are removed from a FAISS index, unless it has lost them; any other search must
        have lost them.

        Parameters
        ----------
        vectors : Tensor [n, d]
            Vectors of the items that remain.
        ids : Column [n]
            Ids of these items.
        remaining : Tensor [n]
            Rows of them among the present items.

        Raises
        ------
        InputError
            If the search still finds an item that is removed, or no longer finds those that remain.
        """
        find, rows = self.find.find, remaining.cpu().numpy()
        engine = ForeignEngine(vectors, ids, find)
        if isinstance(find, RunningFaiss):
            engine.find = OutsideSearch(find.shrunk(rows))
        gone = np.delete(np.arange(len(self.vectors)), rows)
        if len(gone):
            some = torch.from_numpy(gone)[spread_rows(len(gone), CHECKED)]
            asked = self.vectors[some.to(vectors.device)].cpu().numpy()
            found = engine.find(asked, min(NEAREST, len(vectors)))
            named = read_found_ids(found, len(asked), min(NEAREST, len(vectors)))[1].values
            own = np.empty_like(self.ids.values)
            own[self.rows] = self.ids.values
            if still := named[np.isin(named, own[gone])][:3].tolist():
                raise InputError(
                    f"this index searches with an engine of yours, which still finds {still}: "
                    "remove them there first, then here."
                )
        first, engine.recall = shares_found(engine, FlatEngine(vectors, Flat()), vectors)
        if first < LEAST_FOUND:
            raise InputError(
                f"this index searches with an engine of yours, which finds {first:.0%} of the "
                "items that remain: remove there the items that are removed here, and no others."
            )
        return engine


def read_found_ids(found: Any, n_queries: int, k: int) -> tuple[npt.NDArray[np.intp], Column]:
    """Return the number of ids of each query [Q], and all ids, one query behind the other.

    Parameters
    ----------
    found : list of Q lists, arrays or columns of ids; or an array or tensor [Q, k]
        Result of the function.
    n_queries, k : int
        Number of queries that it was asked, and of items that it may return for each.

    Raises
    ------
    InputError
        For anything else: distances and ids, one flat list, another number of rows, more than k
        ids, and ids that are neither whole numbers nor strings.

    Examples
    --------
    >>> sizes, ids = read_found_ids([[4, 2], [], [7]], 3, 2)
    >>> sizes.tolist(), ids.values.tolist()
    ([2, 0, 1], [4, 2, 7])
    """
    rows = read_list(found)
    of = f"search returned a {type(found).__name__}"
    if rows is None:
        raise InputError(f"{of}: {WANTED}.")
    if isinstance(rows, np.ndarray) and rows.dtype.kind == "i" and rows.ndim == 2:
        width = rows.shape[1]
        if len(rows) == n_queries and width <= k:  # as FAISS returns them: all rows are alike
            return np.full(len(rows), width, np.intp), Column.of("ids", rows.ravel())
    if isinstance(rows, list):
        rows = [read_list(row) for row in rows]
    if any(row is None for row in rows) or getattr(rows, "ndim", 2) < 2:
        raise InputError(f"{of} of single ids for {n_queries:,} queries: {WANTED}.")
    if getattr(rows, "ndim", 2) > 2 or any(_holds_lists(row) for row in rows):
        raise InputError(
            f"{of} with a table in each entry, such as the pair (D, I) of distances and ids: "
            "return the ids alone, index.search(queries, k)[1] of FAISS."
        )
    sizes = np.array([len(row) for row in rows], np.intp)
    if len(sizes) != n_queries or sizes.max(initial=0) > k:
        raise InputError(
            f"search returned {len(sizes)} rows of up to {sizes.max(initial=0)} ids: return "
            f"{n_queries} rows, one for each query, of up to {k}."
        )
    if not sizes.any():
        return sizes, Column(np.zeros(0, np.int64))
    flat = [one for row in rows for one in row] if isinstance(rows, list) else rows.ravel()
    return sizes, Column.of("ids that search returned", flat)


def _holds_lists(row: Any) -> bool:
    """Return whether a row of ids has rows of its own."""
    if isinstance(row, np.ndarray):
        return row.ndim > 1
    return any(hasattr(one, "__len__") and not isinstance(one, (str, bytes)) for one in row[:1])
