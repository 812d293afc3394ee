"""An engine that passes over some of the items, others for each query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.search.engines._protocol import Engine, EngineHits

CELLS = 2**24
"""Of (query, candidate) pairs that are looked through at once."""
PassedOver = Callable[[Int[Tensor, "q m"], slice], Bool[Tensor, "q m"]]
"""Which of the rows [q, m], or -1, that a slice of the queries found are to be passed over."""


@dataclass(frozen=True)
class WithoutSome(Engine):
    """The nearest of the items that are left: as many more are found as may be passed over.

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

    def search(self, queries: Float[Tensor, "Q d"], k: int) -> EngineHits:
        """The nearest of queries [Q, d]; -1 behind them where fewer than k are left."""
        depth = min(self.n_items, k + self.most)
        step = max(1, CELLS // depth)
        slices = [slice(i, i + step) for i in range(0, max(1, len(queries)), step)]
        parts = [self._left(self.engine.search(queries[part], depth), part, k) for part in slices]
        positions, squared = (torch.cat(x) for x in zip(*parts, strict=True))
        return EngineHits(positions, squared)

    def _left(self, hits: EngineHits, part: slice, k: int) -> tuple[Tensor, Tensor]:
        gone = self.passed_over(hits.positions, part)
        order = gone.to(torch.uint8).argsort(dim=1, stable=True)[:, :k]  # those left come first
        gone = gone.gather(1, order)
        positions = hits.positions.gather(1, order).masked_fill(gone, -1)
        return positions, hits.squared.gather(1, order).masked_fill(gone, torch.inf)

    def updated(self, vectors: Float[Tensor, "N d"], remaining: Int[Tensor, " N"] | None) -> Engine:
        """Of the engine itself."""
        return self.engine.updated(vectors, remaining)
