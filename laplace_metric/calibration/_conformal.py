"""Split conformal prediction: ranks among held-out scores, valid for any model.

If a new score is exchangeable with n held-out ones (the queries come from the same source, in no
particular order, and the gallery is the same), then

    P(p <= alpha) <= alpha    for p = (1 + #{i : s_i <= s}) / (n + 1)
    1 - alpha <= P(s >= q) <= 1 - alpha + 1 / (n + 1)
                              for the k-th smallest score q, k = floor(alpha (n + 1))

the last without ties (Vovk et al. 2005; Lei et al. 2018). The first is used with scores that no
held-out query taught anything, so that all of them count. On average over held-out sets and
queries: neither for one class nor for one held-out set. Drift, another gallery, repeated or
neighbouring frames of one video break it.

Which neighbour is the first match, the score of retrieval sets:

    log pi_j = log s_j + sum_{i < j} log(1 - s_i),   s = sigmoid(l)

is the probability that neighbour j is a match and none before it is, were matches independent. A
set of all neighbours with ``pi_j >= q`` is one of the smallest that hold the first match as often
(Sadinle, Lei & Wasserman 2019, for classes; here the classes are ranks): one item where the nearest
is sure, some where it is not, none where nothing looks like a match. That independence does not
hold costs size; the coverage comes from held-out queries.

Credible sets of a query (Kirchhof et al. 2023, MCInfoNCE, section 5.3 and C.5): the items whose
mean direction lies in the smallest cap that holds the query's latent direction with probability p
under a von Mises-Fisher of the query's concentration:

    {j : mu_q . mu_j >= t},    P(mu_q . z >= t) = p

(printed with <=, which is the complement). A property of the query's posterior alone: it says where
the query may lie, and guarantees nothing about labels; ``Index.retrieval_sets`` does.

Sets of labels that hold the query's, class by class.

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
from torch.nn.functional import logsigmoid

from laplace_metric._utils.validation import ArrayLike, as_tensor, check_share
from laplace_metric.calibration._columns import Column
from laplace_metric.distributions import cap_angle, vmf_concentration
from laplace_metric.errors import InputError

BLOCK_CELLS = 2**22
"""Of (query, known query) pairs that are compared at once."""


def p_values(held_out: ArrayLike, scores: ArrayLike) -> Float[Tensor, " Q"]:
    """p [Q] of scores [Q], small where they are low among ``held_out`` [n]; float64.

    Raises
    ------
    InputError
        Unless both are [n] and [Q] numbers, none of them NaN.

    Examples
    --------
    >>> p_values(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.5, 9.0]))
    tensor([0.2500, 0.7500, 1.0000], dtype=torch.float64)
    """
    reference, new = _ordered("held_out", held_out), _ordered("scores", scores)
    below = torch.searchsorted(reference.sort().values, new.to(reference.device), right=True)
    return (1 + below).double() / (len(reference) + 1)


def least_common_p_values(
    known: Float[Tensor, "n J"], new: Float[Tensor, "Q J"]
) -> Float[Tensor, " Q"]:
    """Full conformal p [Q] of "exchangeable with the known": small where a statistic is large.

    A point's rank in statistic j is how many of the other n are at least as large; its score the
    least of its J ranks, ties by their sum, the new point among the n + 1. No point is set aside,
    and what is extreme in all statistics reaches 1 / (n + 1).

    Examples
    --------
    >>> known = torch.tensor([[1.0, 0.0], [2.0, 3.0], [3.0, 1.0], [0.0, 2.0]])
    >>> least_common_p_values(known, torch.tensor([[9.0, 9.0], [0.5, 0.5]]))
    tensor([0.2000, 1.0000], dtype=torch.float64)
    """
    n, size = known.shape
    columns = known.mT.contiguous()
    order = columns.sort(1).values
    at_least = n - torch.searchsorted(order, columns)  # [J, n], itself included
    new_rank = n - torch.searchsorted(order, new.mT.contiguous())  # [J, Q]
    base, weight = at_least - 1, size * (n + 1) + 1  # [J, n]
    ours = new_rank.amin(0) * weight + new_rank.sum(0)
    step = max(1, BLOCK_CELLS // max(1, n))
    p = torch.empty(len(new), dtype=torch.float64, device=new.device)
    for i in range(0, len(new), step):
        part = new[i : i + step]
        least = torch.full((len(part), n), n + 1, device=new.device)
        total = torch.zeros_like(least)
        for j in range(size):
            rank = base[j] + (part[:, j, None] >= columns[j])  # [q, n]
            least, total = least.minimum(rank), total + rank
        as_strange = (least * weight + total <= ours[i : i + step, None]).sum(1)
        p[i : i + step] = (1 + as_strange).double() / (n + 1)
    return p


def own_p_values(known: Float[Tensor, "n J"]) -> Float[Tensor, " n"]:
    """p [n] of each known point among the other n - 1: that of ``least_common_p_values`` for it.

    A point and the others are the same n points whichever it is, so that their ranks say it all.

    Examples
    --------
    >>> own_p_values(torch.tensor([[1.0, 0.0], [2.0, 3.0], [3.0, 1.0], [0.0, 2.0]])).tolist()
    [1.0, 0.25, 0.5, 0.75]
    """
    n, size = known.shape
    columns = known.mT.contiguous()
    rank = n - torch.searchsorted(columns.sort(1).values, columns)  # [J, n]
    score = rank.amin(0) * (size * n + 1) + rank.sum(0)
    as_strange = torch.searchsorted(score.sort().values, score, right=True)
    return as_strange.double() / n


def conformal_quantile(held_out: ArrayLike, alpha: float, confidence: float | None = None) -> float:
    """q, so that a new score is at least q with probability 1 - alpha or more; -inf for few scores.

    Parameters
    ----------
    confidence : float or None
        None: on average over held-out scores. Else: with this confidence for these held-out ones,
        whose share above the k-th smallest is Beta(n + 1 - k, k) distributed, so that
        ``P(Binomial(n, alpha) < k) <= 1 - confidence`` (Vovk 2012, proposition 2a).

    Raises
    ------
    InputError
        Unless alpha and confidence lie between 0 and 1 and ``held_out`` are [n] numbers, none of
        them NaN.

    Examples
    --------
    >>> conformal_quantile(torch.arange(1.0, 100.0), 0.1)
    10.0
    >>> conformal_quantile(torch.arange(1.0, 100.0), 0.1, confidence=0.95)
    5.0
    """
    alpha, scores = check_share("alpha", alpha), _ordered("held_out", held_out)
    n = len(scores)
    k = min(n, math.floor(alpha * (n + 1) * (1 + 1e-12)))  # 0.1 * 20 is 2 also in floats
    if confidence is not None:
        from scipy.stats import binom

        doubt = 1 - check_share("confidence", confidence)
        k = min(k, int((binom.cdf(range(n), n, alpha) <= doubt).sum()))
    return -math.inf if k == 0 else float(scores.sort().values[k - 1])


def _ordered(name: str, values: ArrayLike) -> Float[Tensor, " n"]:
    """Scores [n] in float64; infinite ones have a rank too."""
    scores = as_tensor(name, values).double().contiguous()
    if scores.ndim != 1 or bool(scores.isnan().any()):
        raise InputError(f"{name} has shape {tuple(scores.shape)}, or NaN: pass [n] numbers.")
    return scores


def credible_radius(
    trace: Float[Tensor, " Q"], dimension: int, probability: float
) -> Float[Tensor, " Q"]:
    """Euclidean radius [Q] about the unit mean, in [0, 2].

    Parameters
    ----------
    trace : Tensor [Q]
        Of the tangent covariance, whose resultant length ``(1 + t)^(-1/2)`` gives the
        concentration, as in ``Embedding.concentration``.

    Examples
    --------
    >>> import torch
    >>> credible_radius(torch.tensor([1e-4, 0.1, 10.0]), 64, 0.95)
    tensor([0.0114, 0.3490, 1.3297])
    """
    concentration = vmf_concentration((1 + trace).rsqrt(), dimension)
    return 2 * (cap_angle(concentration, dimension, probability) / 2).sin()


def log_first_match(logit: Float[Tensor, "Q k"]) -> Float[Tensor, "Q k"]:
    """log pi [Q, k] of scores l [Q, k], nearest neighbour first; -inf where there is none.

    Examples
    --------
    >>> log_first_match(torch.tensor([[0.0, 0.0, 0.0]])).exp()
    tensor([[0.5000, 0.2500, 0.1250]])
    """
    missed = logsigmoid(-logit)
    return logsigmoid(logit) + missed.cumsum(1) - missed


def first_match_score(
    logit: Float[Tensor, "Q k"], match: Bool[Tensor, "Q k"]
) -> Float[Tensor, " Q"]:
    """log pi [Q] of the first neighbour that is a match [Q, k]; -inf where none is.

    Examples
    --------
    >>> first_match_score(torch.zeros(1, 3), torch.tensor([[False, True, True]])).exp()
    tensor([0.2500])
    """
    first = match.to(torch.uint8).argmax(1, keepdim=True)
    score = log_first_match(logit).gather(1, first)[:, 0]
    return score.masked_fill(~match.any(1), -torch.inf)


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
        """Return the levels of the labels ``classes`` [M]."""
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
