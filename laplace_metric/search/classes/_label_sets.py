"""``LabelSets``: a set of labels for each query.

A set of items for each query.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._conformal import fewest_queries
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.calibration.labels._label_sets import LabelLevels
from laplace_metric.errors import UnreachableAlphaWarning, callers_line
from laplace_metric.inputs._columns import Column


@dataclass(frozen=True, repr=False)
class LabelSets(Shown):
    """A set of labels for each of Q queries.

    Parameters
    ----------
    classes : Column [C]
        Sorted labels of the index.
    codes : Tensor [Q, depth]
        Place in ``classes`` of the label of each of the nearest items, nearest first; -1 where
        there is no item.
    score : Tensor [Q, depth], float64
        Score of each label at its nearest item: its probability; less than 0 if only items beyond
        the voting ones carry it; -inf at items whose label stands before.
    members : Tensor [Q, depth]
        True for each of these labels that is in the set.
    everywhere : Tensor [C]
        Labels that are in every set, whether an item is near or not: too few of their held-out
        queries, or of those of similar labels, had an item of their label among ``depth``.
    """

    classes: Column
    codes: Int[Tensor, "Q depth"]
    score: Float[Tensor, "Q depth"]
    members: Bool[Tensor, "Q depth"]
    everywhere: Bool[Tensor, " C"]

    @classmethod
    def of(
        cls, hits: SearchHits, classes: Column, calibration: Calibration, levels: LabelLevels
    ) -> LabelSets:
        """Return the labels of neighbours whose score reaches the level of their class.

        Parameters
        ----------
        hits : SearchHits
            Hits of Q queries, as deep as the calibration.
        classes : Column [C]
            Sorted labels of the index.
        calibration : Calibration
            Calibration by labels, which scores the labels of the hits.
        levels : LabelLevels
            Smallest score of a label in a set, for each class.
        """
        assert hits.votes is not None  # labelled queries calibrated the index
        level, codes = levels.of(classes.values), hits.votes.labels
        score = calibration.label_scores(hits)
        members = (score >= level[codes.clip(min=0)]) & (score > -np.inf)
        everywhere = torch.from_numpy(level == -np.inf)
        found, scores, held = (torch.from_numpy(array) for array in (codes, score, members))
        return cls(classes, found, scores, held, everywhere)

    def _sentence(self) -> str:
        sizes = self.sizes.double()
        mean = float(sizes.mean()) if len(sizes) else 0.0
        return f"a set of labels for each of {len(self):,} queries, {mean:.1f} labels on average."

    def _shown_rows(self) -> Rows:
        shown = {"labels": self.classes.values, "sizes": self.sizes}
        return in_rows({**shown, "in every set": f"{int(self.everywhere.sum())} labels"}.items())

    @property
    def sizes(self) -> Int[Tensor, " Q"]:
        """Number of labels in each set [Q], including those in every set; 0 if none looks right."""
        everywhere = self.everywhere.to(self.codes.device)[self.codes.clamp(min=0)]
        return (self.members & ~everywhere).sum(1) + int(self.everywhere.sum())

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, query: int) -> np.ndarray[Any, Any]:
        """Return the labels in the set of one query: likeliest first, then those in every set."""
        score = self.score[query].masked_fill(~self.members[query], -torch.inf)
        order = score.argsort(descending=True, stable=True)[: int(self.members[query].sum())]
        codes = self.codes[query][order].cpu().numpy()
        far = np.setdiff1d(self.everywhere.nonzero().flatten().numpy(), codes)
        return self.classes.values[np.concatenate([codes, far])]

    def holds(self, labels: Any) -> Bool[Tensor, " Q"]:
        """Return whether each set [Q] holds the label of its query.

        Raises
        ------
        InputError
            Unless ``labels`` are [Q] whole numbers or strings.
        """
        column = Column.of("labels", labels, len(self))
        codes = torch.from_numpy(self.classes.codes_of(column.values)).to(self.codes.device)
        near = (self.members & (self.codes == codes[:, None])).any(1)
        return near | (self.everywhere.to(codes.device)[codes.clamp(min=0)] & (codes >= 0))


def warn_if_everything(levels: LabelLevels, alpha: float) -> None:
    """Warn if no label has a level.

    Warns
    -----
    UnreachableAlphaWarning
        With how many held-out queries there are, and how many it takes.
    """
    if levels.other > -np.inf or bool((levels.level > -np.inf).any()):
        return
    warnings.warn(
        f"alpha={alpha:g}: every set holds every label. {int(levels.queries.sum())} held-out "
        f"queries of the second half have a match, a level needs {fewest_queries(alpha)} in each "
        "cluster of classes, all but a share alpha with their label among the neighbours. "
        "Calibrate with more queries or a larger depth, or raise alpha.",
        UnreachableAlphaWarning,
        stacklevel=callers_line(),
    )


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
