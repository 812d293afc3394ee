"""Scores of the labels of a query, and levels by which sets hold its label class by class.

The score of label c for a query, larger where it is likelier, is

    s(c) = P(c)     of a label among the voting neighbours
           -r       of a label whose nearest neighbour has rank r beyond the votes
           -inf     of a label that no neighbour carries

and a set is ``{c : s(c) >= q_c}``, with q_c the conformal quantile of the scores that held-out
queries of c's category gave to their own label (Mondrian conformal prediction, Vovk et al. 2005,
section 4.5). A class with n_c >= m held-out queries is a category. The others are two, harder and
easier ones, after Ding et al. 2023; which is which comes from the first half of the held-out
queries, whose scores do not count again. Then

    P(s(y) >= q_y | category of y) >= 1 - alpha

for a query that is exchangeable with the second half. It counts among its own class: a class is
rare if it has at most m queries, that one included, so q_c of a rare c is over all held-out
queries of classes with n_c' <= m. Of all such sets those by P(c) are the smallest on average where
P is the true posterior (Sadinle, Lei & Wasserman 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from laplace_metric.calibration._conformal import conformal_quantile, fewest_queries
from laplace_metric.errors import FileFormatError
from laplace_metric.io import UNIT, saved

Labels = npt.NDArray[Any]
"""Whole numbers, or objects that are strings."""
LEAST_RANK = 5
"""k of a level that a class has alone: the least few of its scores are often -inf."""
CLUSTERS = 2
"""Of the other classes, the harder and the easier."""


def label_scores(
    posterior: Float[np.ndarray, "Q V"], labels: Int[np.ndarray, "Q K"]
) -> Float[np.ndarray, "Q K"]:
    """Return s [Q, K] at the nearest neighbour of each label; -inf elsewhere. Labels -1 are none.

    Examples
    --------
    >>> label_scores(np.array([[0.7, 0.0]]), np.array([[5, 5, 2, 5, -1]]))
    array([[ 0.7, -inf, -3. , -inf, -inf]])
    """
    order = labels.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(labels, order, 1)
    new = np.ones(labels.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.zeros(labels.shape, dtype=bool)
    np.put_along_axis(first, order, new, 1)
    score = np.broadcast_to(-np.arange(1.0, labels.shape[1] + 1), labels.shape).copy()
    score[:, : posterior.shape[1]] = posterior
    return np.where(first & (labels >= 0), score, -np.inf)


def codes_of(classes: Labels, values: Labels) -> npt.NDArray[np.int64]:
    """Return the place of each value among sorted ``classes``; -1 where it is not one of them."""
    if classes.dtype != values.dtype or not len(classes):
        return np.full(len(values), -1)
    codes = np.searchsorted(classes, values).clip(max=len(classes) - 1)
    return np.where(classes[codes] == values, codes, -1)


@dataclass(frozen=True)
class LabelLevels:
    """Smallest score with which each label is in a set.

    Parameters
    ----------
    classes : [C]
        Sorted labels that the index had when it was calibrated.
    queries : [C]
        Number of held-out queries of each label, in the second half.
    alone : [C]
        True for a label whose level comes from queries of that class only.
    level : [C]
        Smallest score of each label in a set; -inf for a label that is in every set.
    other : float
        Level of a label that came to the index later.
    """

    classes: Labels
    queries: Int[np.ndarray, " C"]
    alone: Bool[np.ndarray, " C"]
    level: Float[np.ndarray, " C"]
    other: float

    def of(self, classes: Labels) -> Float[np.ndarray, " M"]:
        """Return the levels of the labels ``classes`` [M]."""
        at = codes_of(self.classes, classes)
        return np.where(at < 0, self.other, self.level[at.clip(min=0)])


@dataclass(frozen=True)
class HeldOutLabels:
    """Score of the true label of each held-out query whose label is in the index.

    Parameters
    ----------
    classes : [C] whole numbers or strings
        Sorted labels of the index.
    clustering_codes, clustering_scores : [m]
        Place in ``classes`` and score of each query of the first half.
    codes, scores : [n]
        Place in ``classes`` and score of each query of the second half.
    """

    classes: Labels
    clustering_codes: Int[np.ndarray, " m"] = saved(least=0)
    clustering_scores: Float[np.ndarray, " m"] = saved(most=UNIT, infinite=True)
    codes: Int[np.ndarray, " n"] = saved(least=0)
    scores: Float[np.ndarray, " n"] = saved(most=UNIT, infinite=True)

    def check_saved(self) -> None:
        """Refuse classes of a file that are not sorted, and codes of none of them."""
        most = max(c.max(initial=-1) for c in (self.codes, self.clustering_codes))
        names = self.classes.tolist()
        if not names or names != sorted(set(names)) or most >= len(names):
            raise FileFormatError("labels.classes are not the sorted classes of its labels")

    def levels(
        self, alpha: float, *, by_class: bool = True, confidence: float | None = None
    ) -> LabelLevels:
        """Return q_c of every label; or, with ``by_class=False``, one quantile of all queries.

        Raises
        ------
        InputError
            For an alpha or a confidence outside (0, 1).
        """
        quantile = partial(conformal_quantile, alpha=alpha, confidence=confidence)
        fewest = fewest_queries(alpha, LEAST_RANK)
        count = np.bincount(self.codes, minlength=len(self.classes))
        if not by_class:
            one = quantile(self.scores)
            nowhere, level = np.zeros(count.shape, dtype=bool), np.full(count.shape, one)
            return LabelLevels(self.classes, count, nowhere, level, one)
        cluster, usual = self._clusters(fewest)
        pooled = (count <= fewest)[self.codes]
        shared = [
            quantile(self.scores[pooled & (cluster[self.codes] == g)]) for g in range(CLUSTERS)
        ]
        level, alone = np.array(shared)[cluster], count >= fewest
        for c in np.flatnonzero(alone):
            level[c] = quantile(self.scores[self.codes == c])
        return LabelLevels(self.classes, count, alone, level, shared[usual])

    def _clusters(self, fewest: int) -> tuple[npt.NDArray[np.int_], int]:
        """Return the cluster [C] of each class, easiest last, and that of an unknown class.

        Bounds are quantiles over the queries of rare classes. The mean rank of few queries is drawn
        to the middle by one more query there.
        """
        m, n_classes = len(self.clustering_codes), len(self.classes)
        order = np.sort(self.clustering_scores)
        below = np.searchsorted(order, self.clustering_scores)
        up_to = np.searchsorted(order, self.clustering_scores, side="right")
        rank = (below + up_to) / (2 * max(1, m))  # in [0, 1]; ties share theirs
        count = np.bincount(self.clustering_codes, minlength=n_classes)
        total = np.bincount(self.clustering_codes, rank, minlength=n_classes)
        ease = (total + 0.5) / (count + 1)
        of_rare = ease[self.clustering_codes][(count <= fewest)[self.clustering_codes]]
        if len(of_rare) < CLUSTERS * fewest:
            return np.zeros_like(count), 0
        bounds = np.quantile(of_rare, np.arange(1, CLUSTERS) / CLUSTERS)
        return np.searchsorted(bounds, ease), int(np.searchsorted(bounds, 0.5))
