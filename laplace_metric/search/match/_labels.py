"""Sets of labels that hold the query's, class by class.

The score of label c for a query, larger where it is likelier, is

    s(c) = P(c)     of a label among the voting neighbours (``LabelPosterior``)
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

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.validation import check_share
from laplace_metric.search._items import Column
from laplace_metric.search.match._conformal import conformal_quantile

LEAST_RANK = 5
"""k of a level that a class has alone: the least few of its scores are often -inf."""
CLUSTERS = 2
"""Of the other classes, the harder and the easier."""


def label_scores(
    posterior: Float[Tensor, "Q V"], labels: Int[Tensor, "Q K"]
) -> Float[Tensor, "Q K"]:
    """s [Q, K] at the nearest neighbour of each label, -inf elsewhere; labels are -1 for nobody.

    Examples
    --------
    >>> label_scores(torch.tensor([[0.7, 0.0]]), torch.tensor([[5, 5, 2, 5, -1]]))
    tensor([[ 0.7000,    -inf, -3.0000,    -inf,    -inf]])
    """
    order = labels.argsort(dim=1, stable=True)
    ordered = labels.gather(1, order)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.zeros_like(new).scatter(1, order, new) & (labels >= 0)
    rank = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    score = -rank.to(posterior).repeat(len(labels), 1)
    score[:, : posterior.shape[1]] = posterior
    return score.masked_fill(~first, -torch.inf)


@dataclass(frozen=True)
class LabelLevels:
    """The least score with which each label is in a set.

    Parameters
    ----------
    classes : Column [C]
        Sorted labels that the index had when it was calibrated.
    queries : Tensor [C]
        Held-out queries of each, of the second half.
    alone : Tensor [C]
        Whether a level comes from queries of that class only.
    level : Tensor [C], float64
        -inf for a label that is in every set.
    other : float
        The level of a label that came to the index later.
    """

    classes: Column
    queries: Int[Tensor, " C"]
    alone: Bool[Tensor, " C"]
    level: Float[Tensor, " C"]
    other: float

    def of(self, classes: Column) -> Float[Tensor, " M"]:
        """Of the labels ``classes`` [M]."""
        at = torch.from_numpy(self.classes.codes_of(classes.values))
        return torch.where(at < 0, self.other, self.level[at.clamp(min=0)])


@dataclass(frozen=True)
class HeldOutLabels:
    """The scores that held-out queries, whose label the index has, gave to their own label.

    Parameters
    ----------
    classes : Column [C]
        Sorted labels of the index.
    clustering_codes, clustering_scores : Tensor [m]
        Place in ``classes`` and score of each query of the first half.
    codes, scores : Tensor [n]
        Of the second half.
    """

    classes: Column
    clustering_codes: Int[Tensor, " m"]
    clustering_scores: Float[Tensor, " m"]
    codes: Int[Tensor, " n"]
    scores: Float[Tensor, " n"]

    def levels(
        self, alpha: float, *, by_class: bool = True, confidence: float | None = None
    ) -> LabelLevels:
        """q_c of every label; or, with ``by_class=False``, one quantile of all queries.

        Raises
        ------
        InputError
            For an alpha or a confidence outside (0, 1).
        """
        quantile = partial(conformal_quantile, alpha=alpha, confidence=confidence)
        fewest = fewest_queries(alpha, LEAST_RANK)
        count = torch.bincount(self.codes, minlength=len(self.classes))
        if not by_class:
            one = quantile(self.scores)
            level = torch.full(count.shape, one, dtype=torch.float64)
            return LabelLevels(
                self.classes, count, torch.zeros_like(count, dtype=torch.bool), level, one
            )
        cluster, usual = self._clusters(fewest)
        pooled = (count <= fewest)[self.codes]
        shared = [
            quantile(self.scores[pooled & (cluster[self.codes] == g)]) for g in range(CLUSTERS)
        ]
        level = torch.tensor(shared, dtype=torch.float64)[cluster]
        alone = count >= fewest
        for c in alone.nonzero().flatten().tolist():
            level[c] = quantile(self.scores[self.codes == c])
        return LabelLevels(self.classes, count, alone, level, shared[usual])

    def _clusters(self, fewest: int) -> tuple[Tensor, int]:
        """A cluster [C] for each class, easiest last, and that of a class nothing is known of.

        Bounds are quantiles over the queries of rare classes. The mean rank of few queries is drawn
        to the middle by one more query there.
        """
        m, n_classes = len(self.clustering_codes), len(self.classes)
        order = self.clustering_scores.sort().values
        below = torch.searchsorted(order, self.clustering_scores)
        up_to = torch.searchsorted(order, self.clustering_scores, right=True)
        rank = (below + up_to).double() / (2 * max(1, m))  # in [0, 1]; ties share theirs
        count = torch.bincount(self.clustering_codes, minlength=n_classes)
        total = torch.bincount(self.clustering_codes, rank, minlength=n_classes)
        ease = (total + 0.5) / (count + 1)
        of_rare = ease[self.clustering_codes][(count <= fewest)[self.clustering_codes]]
        if len(of_rare) < CLUSTERS * fewest:
            return torch.zeros_like(count), 0
        steps = torch.arange(1, CLUSTERS, dtype=torch.float64) / CLUSTERS
        bounds = of_rare.quantile(steps)
        middle = int(torch.searchsorted(bounds, ease.new_tensor(0.5)))
        return torch.searchsorted(bounds, ease), middle


def fewest_queries(alpha: float, rank: int = 1) -> int:
    """Held-out scores of which a quantile is the one of this rank: rank / alpha - 1, rounded up.

    Raises
    ------
    InputError
        For an alpha outside (0, 1).

    Examples
    --------
    >>> fewest_queries(0.1), fewest_queries(0.05), fewest_queries(0.1, 5)
    (9, 19, 49)
    """
    return max(1, math.ceil(min(rank / check_share("alpha", alpha) - 1, 1e18) * (1 - 1e-12)))
