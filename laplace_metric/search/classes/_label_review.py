"""``LabelReview``: items of an index whose label looks wrong to their neighbours.

With P(c) of the labels c among the voting neighbours of an item, itself left out
(``Calibration.assess``), and y the label that it has, items are ordered by

    P(y), smallest first;    where equal, by max_c P(c), largest first

P(y) = 0 where no voting neighbour carries y; a label that no other item has cannot be assessed, and
such items are left out. Neighbours that outvote a label are the idea of Wilson (1972, edited
nearest neighbours), probabilities of the given label that of confident learning (Northcutt, Jiang &
Chuang 2021); here they are calibrated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.display import SOME, Rows, Shown
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.search._items import Items


@dataclass(frozen=True, repr=False)
class LabelReview(Shown):
    """n items of an index, those whose label looks most wrong first.

    Parameters
    ----------
    positions : Tensor [n]
        Row of each item in the index.
    ids, labels, suggested : arrays [n]
        Id of each item, the label that it has, and the likeliest label by its neighbours.
    probability : Tensor [n]
        Probability, by its neighbours, that the label that an item has is right.
    suggested_probability : Tensor [n]
        Probability that the suggested label is right.
    """

    positions: Int[Tensor, " n"]
    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    suggested: np.ndarray[Any, Any]
    probability: Float[Tensor, " n"]
    suggested_probability: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.positions)

    def _sentence(self) -> str:
        other = int((self.suggested != self.labels).sum())
        return f"{len(self):,} items, of which {other:,} have another label than is likeliest."

    def _shown_rows(self) -> Rows:
        return [
            (
                f"item {self.ids[i]}",
                f"{self.labels[i]}, {self.probability[i]:.2f}; "
                f"likeliest {self.suggested[i]}, {self.suggested_probability[i]:.2f}",
            )
            for i in range(min(len(self), SOME))
        ]


def reviewed(
    others: Iterable[LabelledHits], calibration: Calibration, items: Items, most: int
) -> LabelReview:
    """Return the review, from the hits of each item among the others, block by block."""
    parts = [_assessed(part, calibration) for part in others]
    own, best, nearest = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert items.labels is not None
    assert items.label_codes is not None
    codes = items.label_codes.cpu().numpy()
    shared = np.bincount(codes)[codes] > 1
    order = np.lexsort((-best, own))
    rows = order[shared[order]][:most]
    labels = items.labels.values
    return LabelReview(
        torch.from_numpy(rows),
        items.ids.values[rows],
        labels[rows],
        labels[nearest[rows].clip(min=0)],
        torch.from_numpy(own[rows]),
        torch.from_numpy(best[rows]),
    )


Arrays = np.ndarray[Any, Any]


def _assessed(others: LabelledHits, calibration: Calibration) -> tuple[Arrays, Arrays, Arrays]:
    """Return P(y), max_c P(c), and the nearest item that carries that c."""
    assessed = calibration.assess(others.hits)
    assert assessed.carrier is not None  # labels calibrated it
    assert assessed.label_probability is not None
    scores = np.where(others.match, calibration.label_scores(others.hits).clip(min=0), 0)
    nearest = np.take_along_axis(others.hits.positions, assessed.carrier[:, None], 1)[:, 0]
    return scores.max(1), assessed.label_probability, nearest
