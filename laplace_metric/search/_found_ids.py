"""Read what a search function returns: for each query the ids of up to k items."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric.errors import InputError
from laplace_metric.inputs._arrays import read_list
from laplace_metric.inputs._columns import Column

WANTED = "return a list of ids for each query, up to k, or an array [Q, k]"


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
