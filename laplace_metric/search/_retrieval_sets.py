"""A set of items for each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric.inputs._columns import Column


@dataclass(frozen=True, repr=False)
class RetrievalSets(Shown):
    """A set of items for each of Q queries.

    Parameters
    ----------
    positions : Tensor [Q, depth]
        The nearest items, nearest first.
    members : Tensor [Q, depth]
        True for those that are in the set.
    ids : Column
        Ids of all items of the index.
    """

    positions: Int[Tensor, "Q depth"]
    members: Bool[Tensor, "Q depth"]
    ids: Column

    def _sentence(self) -> str:
        sizes = self.sizes.double()
        mean = float(sizes.mean()) if len(sizes) else 0.0
        return f"a set of items for each of {len(self):,} queries, {mean:.1f} items on average."

    def _shown_rows(self) -> Rows:
        return in_rows({"looked at": self.positions, "sizes": self.sizes}.items())

    @property
    def sizes(self) -> Int[Tensor, " Q"]:
        """Number of items in each set, [Q]; 0 if no item of the index is near enough."""
        return self.members.sum(1)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, query: int) -> np.ndarray[Any, Any]:
        """Return the ids of the set of one query, nearest first."""
        rows = self.positions[query][self.members[query]]
        return self.ids.values[rows.cpu().numpy()]
