"""The nearest of the items that are left when some are passed over, others for each query."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.search._engine import Engine
from laplace_metric.search._neighbours import RowSearch

CELLS = 2**24
"""Number of (query, candidate) pairs that are looked through at once."""
PassedOver = Callable[[Int[Tensor, "q m"], slice], Bool[Tensor, "q m"]]
"""Function of rows [q, m], or -1, and the slice of the queries that found them.

It returns True for the rows that are to be passed over.
"""


def without_some(engine: Engine, passed_over: PassedOver, most: int) -> RowSearch:
    """Return a search that finds as many items more as may be passed over, and leaves these out.

    Parameters
    ----------
    engine : Engine
        The search that finds the candidates.
    passed_over : function
        Function that marks the candidates to leave out.
    most : int
        Largest number of items that are passed over for a query.
    """

    def search(queries: Float[Tensor, "Q d"], k: int) -> Int[Tensor, "Q k"]:
        """Return the nearest of queries [Q, d]; -1 behind them where fewer than k are left."""
        depth = min(len(engine.vectors), k + most)
        step = max(1, CELLS // depth)
        parts = []
        for start in range(0, max(1, len(queries)), step):
            part = slice(start, start + step)
            rows = engine.search(queries[part], depth)
            gone = passed_over(rows, part)
            order = gone.to(torch.uint8).argsort(dim=1, stable=True)[:, :k]  # those left first
            parts.append(rows.gather(1, order).masked_fill(gone.gather(1, order), -1))
        return torch.cat(parts)

    return search
