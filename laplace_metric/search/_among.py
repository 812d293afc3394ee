"""Search among some of the items: which rows a filter allows, and the nearest of them.

The search is exact whatever the engine is. A graph or an inverted file that looks through a fixed
part of its vectors finds few of the allowed ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import block_rows
from laplace_metric.errors import InputError
from laplace_metric.evaluation._reranking import nearest_rows
from laplace_metric.evaluation._shortlists import block_candidates
from laplace_metric.inputs._columns import Column
from laplace_metric.inputs._filters import read_filter
from laplace_metric.search._items import Items
from laplace_metric.search.rank._neighbours import RowSearch

PART_BYTES = 2**28
"""Memory of the allowed vectors that are copied at once."""


def rows_among(items: Items, among: Any) -> Int[Tensor, " n"]:
    """Return the rows [n] that a filter allows, ascending.

    Parameters
    ----------
    items : Items
        Items of the index.
    among : [N] booleans, or [n] ids
        True for each item that may be found, in the order of the items; or their ids.

    Raises
    ------
    InputError
        For a mask of another length, ids that are not there or stand twice, numbers that are not
        whole, and a filter that leaves nothing.
    """
    found, n = read_filter(among, len(items)), len(items)
    if isinstance(found, Column):
        rows = items.rows_of(found.values, "among").sort().values
    else:
        rows = torch.from_numpy(np.flatnonzero(found))
    if not len(rows):
        raise InputError(f"among leaves none of the {n:,} items: allow one or more.")
    return rows


def search_among(vectors: Float[Tensor, "N d"], rows: Int[Tensor, " n"]) -> RowSearch:
    """Return an exact search among some rows.

    Equal distances are in order of position.

    Parameters
    ----------
    vectors : Tensor [N, d]
        Vectors of all items, as the engine holds them.
    rows : Tensor [n]
        Rows that may be found, ascending.
    """
    allowed = rows.to(vectors.device)
    size = block_rows(vectors.shape[1] * vectors.element_size(), PART_BYTES)

    def search(queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the nearest rows of queries [Q, d]; -1 behind them where fewer are allowed."""
        asked = queries.to(vectors)
        found = allowed.new_full((len(asked), k), -1)
        gaps = found.new_full(found.shape, torch.inf, dtype=torch.float64)
        for part in allowed.split(size):
            own = vectors[part]
            near, gap = nearest_rows(
                asked,
                own,
                min(k, len(part)),
                block_candidates(own, own.dtype),
                block_candidates(own, torch.float64),
            )
            gaps = torch.cat([gaps, gap], 1)
            order = gaps.argsort(dim=1, stable=True)[:, :k]  # those of earlier rows first
            gaps = gaps.gather(1, order)
            found = torch.cat([found, part[near]], 1).gather(1, order)
        return found

    return search
