"""The label of a query: its probability, and sets of labels that hold it class by class.

"None of the neighbours' labels" is one answer. Among the labels c of the V voting neighbours, with
l_c the score of the nearest neighbour of that label, p_c its weight in the vote (``_hits``) and o_c
its log odds by the class model of the gallery (0 without one),

    P(c)    = exp(s_c) / (1 + sum_c' exp(s_c')),    s_c = a l_c + g log p_c + h o_c + b
    P(none) = 1 / (1 + sum_c' exp(s_c'))

close to a logarithmic opinion pool (Genest & Zidek 1986), which has log probabilities where o_c has
log odds. a, g, h and b maximise the likelihood of labelled queries, whose label is none of the
candidates where they have no neighbour of it: a conditional logit (McFadden 1974) over what the
search returned.

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

Split conformal prediction: ranks among held-out scores, valid for any model.

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from laplace_metric._utils.validation import ArrayLike, as_floats, check_share
from laplace_metric.calibration._hits import VOTES, LabelVotes, namespace
from laplace_metric.errors import InputError

Labels = npt.NDArray[Any]
"""Whole numbers, or objects that are strings."""
Numbers = npt.NDArray[np.float64]
START = np.array([0.5, 0.5, 0.0, 0.0])
"""(a, g, h, b) that a faint penalty draws to, so that separable queries have a solution."""
PENALTY = 1e-2


@dataclass(frozen=True)
class Candidates:
    """The labels among which an answer is chosen, each at its nearest neighbour.

    Parameters
    ----------
    logit, log_weight, class_odds : [Q, V]
        l_c, log p_c and o_c; 0 where a neighbour is not the nearest one of its label.
    first : [Q, V]
        Whether it is.
    """

    logit: Float[np.ndarray, "Q V"]
    log_weight: Float[np.ndarray, "Q V"]
    class_odds: Float[np.ndarray, "Q V"]
    first: Bool[np.ndarray, "Q V"]

    @classmethod
    def of(cls, logit: Any, votes: LabelVotes) -> Candidates:
        """From scores [Q, K], -inf where there is no neighbour."""
        xp = namespace(logit)
        logit, weighted, labels = (x[:, :VOTES] for x in (logit, votes.weighted, votes.labels))
        same = (labels[:, :, None] == labels[:, None]) * 1
        first = (same.argmax(2) == xp.arange(same.shape[1])) & (logit != -xp.inf)
        log_weight = xp.log(xp.where(weighted > 0, weighted, 1.0))
        odds = xp.zeros_like(logit) if votes.class_odds is None else votes.class_odds[:, :VOTES]
        logit, log_weight, odds = (xp.where(first, x, 0.0) for x in (logit, log_weight, odds))
        return cls(logit, log_weight, odds, first)


@dataclass(frozen=True)
class LabelPosterior:
    """P(c) of the candidates.

    Parameters
    ----------
    numbers : [4]
        a, g, h and b.
    """

    numbers: Float[np.ndarray, " 4"]

    def __call__(self, candidates: Candidates) -> Any:
        """P [Q, V] of each neighbour's label where it is the nearest of its label, else 0."""
        score, total = self._scores(candidates)
        return namespace(score).exp(score - total[:, None])

    def _scores(self, candidates: Candidates) -> tuple[Any, Any]:
        """Scores [Q, V], of which that of "none" would be 0, and log of the sum of all odds [Q]."""
        xp, (a, g, h, b) = namespace(candidates.logit), self.numbers
        score = a * candidates.logit + g * candidates.log_weight + h * candidates.class_odds + b
        score = xp.where(candidates.first, score, -xp.inf)
        top = xp.amax(score, 1).clip(min=0)
        odds = xp.exp(-top) + xp.exp(score - top[:, None]).sum(1)
        return score, top + xp.log(odds)

    def answer(self, candidates: Candidates) -> tuple[Any, Any]:
        """The neighbour with the likeliest label [Q], and the probability of that label [Q]."""
        probability = self(candidates)
        return probability.argmax(1), namespace(probability).amax(probability, 1)

    @classmethod
    def fit(cls, candidates: Candidates, match: Bool[np.ndarray, "Q K"]) -> LabelPosterior:
        """``match``: whether the neighbours' labels are the query's."""
        from scipy.optimize import minimize

        right = match[:, : candidates.first.shape[1]] & candidates.first
        terms = [candidates.logit, candidates.log_weight, candidates.class_odds, candidates.first]

        def loss(numbers: Numbers) -> tuple[float, Numbers]:
            score, total = cls(numbers)._scores(candidates)
            residual, gap = np.exp(score - total[:, None]) - right, numbers - START
            slope = np.array([(residual * term).sum() for term in terms])
            value = total.sum() - score[right].sum()
            return value + PENALTY * gap @ gap, slope + 2 * PENALTY * gap

        best = minimize(loss, START, jac=True, method="BFGS", options={"gtol": 1e-8})
        return cls(best.x)


LEAST_RANK = 5
"""k of a level that a class has alone: the least few of its scores are often -inf."""
CLUSTERS = 2
"""Of the other classes, the harder and the easier."""


def label_scores(
    posterior: Float[np.ndarray, "Q V"], labels: Int[np.ndarray, "Q K"]
) -> Float[np.ndarray, "Q K"]:
    """s [Q, K] at the nearest neighbour of each label, -inf elsewhere; -1 where there is none.

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
    """The least score with which each label is in a set.

    Parameters
    ----------
    classes : [C]
        Sorted labels that the index had when it was calibrated.
    queries : [C]
        Held-out queries of each, of the second half.
    alone : [C]
        Whether a level comes from queries of that class only.
    level : [C]
        -inf for a label that is in every set.
    other : float
        The level of a label that came to the index later.
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
    """The scores that held-out queries, whose label the index has, gave to their own label.

    Parameters
    ----------
    classes : [C] whole numbers or strings
        Sorted labels of the index.
    clustering_codes, clustering_scores : [m]
        Place in ``classes`` and score of each query of the first half.
    codes, scores : [n]
        Of the second half.
    """

    classes: Labels
    clustering_codes: Int[np.ndarray, " m"]
    clustering_scores: Float[np.ndarray, " m"]
    codes: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, " n"]

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
        """A cluster [C] for each class, easiest last, and that of a class nothing is known of.

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


# Split conformal prediction: ranks among held-out scores, valid for any model.

BLOCK_CELLS = 2**22
"""Of (query, known query) pairs that are compared at once."""


def p_values(held_out: ArrayLike, scores: ArrayLike) -> Float[np.ndarray, " Q"]:
    """p [Q] of scores [Q], small where they are low among ``held_out`` [n].

    Raises
    ------
    InputError
        Unless both are [n] and [Q] numbers, none of them NaN.

    Examples
    --------
    >>> p_values([1.0, 2.0, 3.0], [0.0, 2.5, 9.0])
    array([0.25, 0.75, 1.  ])
    """
    reference, new = _ordered("held_out", held_out), _ordered("scores", scores)
    below = np.searchsorted(np.sort(reference), new, side="right")
    return (1 + below) / (len(reference) + 1)


def least_common_p_values(
    known: Float[np.ndarray, "n J"],
    new: Float[np.ndarray, "Q J"],
    others: Int[np.ndarray, "J n"] | None = None,
) -> Float[np.ndarray, " Q"]:
    """Full conformal p [Q] of "exchangeable with the known": small where a statistic is large.

    A point's rank in statistic j is how many of the other n are at least as large; its score the
    least of its J ranks, ties by their sum, the new point among the n + 1. No point is set aside,
    and what is extreme in all statistics reaches 1 / (n + 1).

    Parameters
    ----------
    others : [J, n], optional
        ``ranks_among_others(known)``, where it is at hand.

    Examples
    --------
    >>> known = np.array([[1.0, 0.0], [2.0, 3.0], [3.0, 1.0], [0.0, 2.0]])
    >>> least_common_p_values(known, np.array([[9.0, 9.0], [0.5, 0.5]]))
    array([0.2, 1. ])
    """
    n = len(known)
    columns, others = known.T.copy(), ranks_among_others(known) if others is None else others
    step = max(1, BLOCK_CELLS // max(1, n))
    parts = [
        count_as_strange(columns, others, new[i : i + step])
        for i in range(0, max(1, len(new)), step)
    ]
    return (1 + np.concatenate(parts)) / (n + 1)


def ranks_among_others(known: Float[np.ndarray, "n J"]) -> Int[np.ndarray, "J n"]:
    """Count how many of the other n - 1 known points are at least as large in each statistic."""
    return np.stack([len(x) - 1 - np.searchsorted(np.sort(x), x) for x in known.T])


def count_as_strange(columns: Any, others: Any, new: Any) -> Any:
    """Count the known points at most as common as each of ``new`` [Q, J], of arrays or tensors.

    Parameters
    ----------
    columns : [J, n]
        Statistics of the known points, and ``others``: their ranks without the new one.
    """
    size, n = columns.shape
    pairs = [(columns[j], new[:, j, None]) for j in range(size)]
    known = _strangeness([others[j] + (x >= column) for j, (column, x) in enumerate(pairs)], n)
    ours = _strangeness([(column >= x).sum(1) for column, x in pairs], n)
    return (known <= ours[:, None]).sum(1)


def own_p_values(known: Float[np.ndarray, "n J"]) -> Float[np.ndarray, " n"]:
    """p [n] of each known point among the other n - 1: that of ``least_common_p_values`` for it.

    A point and the others are the same n points whichever it is, so that their ranks say it all.

    Examples
    --------
    >>> own_p_values(np.array([[1.0, 0.0], [2.0, 3.0], [3.0, 1.0], [0.0, 2.0]])).tolist()
    [1.0, 0.25, 0.5, 0.75]
    """
    n = len(known)
    score = _strangeness(list(ranks_among_others(known) + 1), n - 1)
    return np.searchsorted(np.sort(score), score, side="right") / n


def _strangeness(ranks: list[Any], n: int) -> Any:
    """The least of J ranks of n + 1 points, ties by their sum: small is strange."""
    least = total = ranks[0]
    for rank in ranks[1:]:
        least, total = namespace(rank).minimum(least, rank), total + rank
    return least * (len(ranks) * (n + 1) + 1) + total


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
    >>> conformal_quantile(np.arange(1.0, 100.0), 0.1)
    10.0
    >>> conformal_quantile(np.arange(1.0, 100.0), 0.1, confidence=0.95)
    5.0
    """
    alpha, scores = check_share("alpha", alpha), _ordered("held_out", held_out)
    n = len(scores)
    k = min(n, math.floor(alpha * (n + 1) * (1 + 1e-12)))  # 0.1 * 20 is 2 also in floats
    if confidence is not None:
        from scipy.stats import binom

        doubt = 1 - check_share("confidence", confidence)
        k = min(k, int((binom.cdf(range(n), n, alpha) <= doubt).sum()))
    return -math.inf if k == 0 else float(np.sort(scores)[k - 1])


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


def _ordered(name: str, values: ArrayLike) -> Float[np.ndarray, " n"]:
    """Scores [n]; infinite ones have a rank too."""
    scores = as_floats(name, values)
    if scores.ndim != 1 or np.isnan(scores).any():
        raise InputError(f"{name} has shape {scores.shape}, or NaN: pass [n] numbers.")
    return scores


def log_first_match(logit: Float[np.ndarray, "Q k"]) -> Float[np.ndarray, "Q k"]:
    """log pi [Q, k] of scores l [Q, k], nearest neighbour first; -inf where there is none.

    Examples
    --------
    >>> np.exp(log_first_match(np.zeros((1, 3))))
    array([[0.5  , 0.25 , 0.125]])
    """
    missed = -np.logaddexp(0, logit)
    return -np.logaddexp(0, -logit) + missed.cumsum(1) - missed


def first_match_score(
    logit: Float[np.ndarray, "Q k"], match: Bool[np.ndarray, "Q k"]
) -> Float[np.ndarray, " Q"]:
    """log pi [Q] of the first neighbour that is a match [Q, k]; -inf where none is.

    Examples
    --------
    >>> np.exp(first_match_score(np.zeros((1, 3)), np.array([[False, True, True]])))
    array([0.25])
    """
    score = np.take_along_axis(log_first_match(logit), match.argmax(1)[:, None], 1)[:, 0]
    return np.where(match.any(1), score, -np.inf)
