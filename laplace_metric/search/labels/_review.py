"""Labels of an index's own items that look wrong: each item is asked of all others.

With P(c) of the labels c among the voting neighbours of an item, itself left out
(``match._answer``), and y the label that it has, items are ordered by

    P(y), smallest first;    where equal, by max_c P(c), largest first

P(y) = 0 where no voting neighbour carries y; of a label that no other item has it says nothing, and
such items are left out. Neighbours that outvote a label are the idea of Wilson (1972, edited
nearest neighbours), probabilities of the given label that of confident learning (Northcutt, Jiang &
Chuang 2021); here they are calibrated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.tables import as_pandas
from laplace_metric.search._items import Items
from laplace_metric.search.match import Calibration, LabelledHits

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class LabelReview(Shown):
    """n items of an index, those whose label looks most wrong first.

    Parameters
    ----------
    positions : Tensor [n]
        Rows of the index.
    ids, labels, suggested : arrays [n]
        Of each item its id, the label that it has, and the likeliest by its neighbours.
    probability : Tensor [n]
        That the label that it has is right, by its neighbours.
    suggested_probability : Tensor [n]
        That the suggested one is.
    """

    positions: Int[Tensor, " n"]
    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    suggested: np.ndarray[Any, Any]
    probability: Float[Tensor, " n"]
    suggested_probability: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.positions)

    def to_pandas(self) -> pandas.DataFrame:
        """One row an item: id, label, suggested, both probabilities.

        Raises
        ------
        MissingPackageError
            Without pandas.
        """
        names = ("ids", "labels", "suggested", "probability", "suggested_probability")
        columns = {name.removesuffix("s"): np.asarray(getattr(self, name)) for name in names}
        return as_pandas(columns)

    def _sentence(self) -> str:
        other = int((self.suggested != self.labels).sum())
        return f"{len(self):,} items, of which {other:,} have another label than is likeliest."

    def _shown_rows(self) -> Rows:
        return in_rows(vars(self).items())


def reviewed(
    others: Iterable[LabelledHits], calibration: Calibration, items: Items, most: int
) -> LabelReview:
    """From what every item finds among the others, block by block."""
    parts = [_judged(part, calibration) for part in others]
    own, best, nearest = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    assert items.labels is not None
    assert items.label_codes is not None
    codes = items.label_codes.cpu()
    shared = (torch.bincount(codes)[codes] > 1).numpy()
    order = np.lexsort((-best, own))
    rows = order[shared[order]][:most]
    of = items.labels.values
    found = items.ids.values[rows], of[rows], of[nearest[rows].clip(min=0)]
    return LabelReview(
        torch.from_numpy(rows), *found, *map(torch.from_numpy, (own[rows], best[rows]))
    )


def _judged(others: LabelledHits, calibration: Calibration) -> tuple[Tensor, Tensor, Tensor]:
    """P(y), max_c P(c), and the nearest item that carries that c."""
    judged = calibration.judge(others.hits)
    assert judged.answer is not None  # labels calibrated it
    assert judged.label_probability is not None
    scores = calibration.label_scores(others.hits).clamp(min=0).masked_fill(~others.match, 0)
    nearest = others.hits.positions.gather(1, judged.answer[:, None])[:, 0]
    own, best = scores.amax(1).double(), judged.label_probability.double()
    return own.cpu(), best.cpu(), nearest.cpu()
