"""Sets of items instead of a ranking: as many as it takes to hold a match, or as are credible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from laplace_metric.search.columns import Column


@dataclass(frozen=True)
class RetrievalSets:
    """A set of items for each of Q queries.

    Parameters
    ----------
    positions : Tensor [Q, depth]
        The nearest items, nearest first.
    members : Tensor [Q, depth]
        Which of them are in the set.
    ids : Column
        Of all items of the index.
    """

    positions: Tensor
    members: Tensor
    ids: Column

    @property
    def sizes(self) -> Tensor:
        """[Q]; an empty set says that nothing in the index is near enough."""
        return self.members.sum(1)

    @property
    def complete(self) -> Tensor:
        """Whether a set [Q] ends before the items that were looked at do."""
        return ~self.members[:, -1]

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, query: int) -> np.ndarray[Any, Any]:
        """Ids of the set of one query, nearest first."""
        chosen = self.positions[query][self.members[query]]
        return self.ids.values[chosen.cpu().numpy()]
