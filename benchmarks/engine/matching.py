"""The match probability as one more uncertainty: one minus that of the nearest other item.

Every fifth of the queries is searched among the other four, so that no query finds itself. The
probability is learnt from validation items: as queries among the same items where they show the
same classes, else one half of them among the other half, and that half stays in the index.
OOD inputs are searched among all queries. The index ranks by the means, as all methods are: an
index that ranked by the posterior would answer with other items than those that are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.tasks import Part
from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index

FOLDS = 5
APART = 1_000_000
"""Added to the labels of validation classes, so that they are no class of the queries."""


@dataclass(frozen=True, eq=False)
class Doubt:
    """One minus the match probability of the nearest item.

    Parameters
    ----------
    embedder : LaplaceEmbedder
    validation : Part
    new_classes : bool
        Whether the validation classes are others than those of the queries.
    """

    embedder: LaplaceEmbedder
    validation: Part
    new_classes: bool

    def among_themselves(self, part: Part) -> Tensor:
        """Of each item [N], searched among those of other folds."""
        doubt = torch.empty(len(part), dtype=torch.float64)
        fold = torch.arange(len(part)) % FOLDS
        for number in range(FOLDS):
            asked = (fold == number).nonzero()[:, 0]
            doubt[asked] = self.asker(part.subset(fold != number))(part.read(asked))
        return doubt

    def asker(self, gallery: Part) -> Callable[[Tensor], Tensor]:
        """What inputs [B, ...] are asked of an index of ``gallery``."""
        index = self.index(gallery)

        def ask(inputs: Tensor) -> Tensor:
            probability = index.search(inputs, k=1).match_probability
            assert probability is not None
            return 1 - probability[:, 0].double().cpu()

        return ask

    def index(self, gallery: Part) -> Index:
        """Calibrated with validation items."""
        held = self.validation
        if self.new_classes:
            even = torch.arange(len(held)) % 2 == 0
            held, others = held.subset(~even), held.subset(even)
            inputs = torch.cat([gallery.read(), others.read()])
            labels = torch.cat([gallery.labels, others.labels + APART])
            index = self.embedder.index(inputs, labels, rank_by="mean", progress=False)
            index.calibrate(held.read(), held.labels + APART)
        else:
            items = gallery.read(), gallery.labels
            index = self.embedder.index(*items, rank_by="mean", progress=False)
            index.calibrate(held.read(), held.labels)
        return index
