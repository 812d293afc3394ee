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

Which neighbour is the first match: the score of retrieval sets.

With l the scores of the neighbours,

    log pi_j = log s_j + sum_{i < j} log(1 - s_i),   s = sigmoid(l)

is the probability that neighbour j is a match and none before it is, were matches independent. A
set of all neighbours with ``pi_j >= q`` is one of the smallest that hold the first match as often
(Sadinle, Lei & Wasserman 2019, for classes; here the classes are ranks): one item where the nearest
is sure, some where it is not, none where nothing looks like a match. That independence does not
hold costs size; the coverage comes from held-out queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from laplace_metric._utils.validation import ArrayLike, as_floats, check_share
from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.errors import InputError

# Split conformal prediction: ranks among held-out scores, valid for any model.

BLOCK_CELLS = 2**22
"""Of (query, known query) pairs that are compared at once."""


def p_values(held_out: ArrayLike, scores: ArrayLike) -> Float[np.ndarray, " Q"]:
    """Return p-values [Q] of scores [Q], small where they are low among ``held_out`` [n].

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


class RankedPoints(NamedTuple):
    """Known points with their ranks, which take longer than the p-value of a new one.

    Parameters
    ----------
    columns : [J, n]
        Statistics of the points.
    others : [J, n]
        Ranks of the points among each other, as of ``ranks_among_others``.
    weights : sequence of J whole numbers or None
        Number of times that each statistic counts. None, the default: once each.
    """

    columns: Float[np.ndarray, "J n"]
    others: Int[np.ndarray, "J n"]
    weights: Sequence[int] | None = None

    @classmethod
    def of(
        cls, known: Float[np.ndarray, "n J"], weights: Sequence[int] | None = None
    ) -> RankedPoints:
        """Rank the points."""
        return cls(known.T.copy(), ranks_among_others(known), weights)


def least_common_p_values(
    known: Float[np.ndarray, "n J"] | RankedPoints,
    new: Float[np.ndarray, "Q J"],
    weights: Sequence[int] | None = None,
) -> Float[np.ndarray, " Q"]:
    """Return full conformal p-values [Q] of "exchangeable with the known", for ``new`` points.

    A p-value is small where a statistic is large.

    A point's rank r_j in statistic j is how many of the n + 1 are at least as large, itself among
    them; its score the least of r_j / w_j, ties by the sum of ranks. A statistic that counts w_j
    times is a test at w_j times the level (Genovese, Roeder & Wasserman 2006). No point is set
    aside, and what is extreme in all statistics reaches 1 / (n + 1).

    Parameters
    ----------
    known : [n, J] or RankedPoints
        Statistics of the known points, or their ranks, if they were computed before.
    new : [Q, J]
        Statistics of the new points.
    weights : sequence of J whole numbers or None
        Number of times w_j that each statistic counts, where ``known`` are statistics. None, the
        default: once each.

    Examples
    --------
    >>> known = np.array([[1.0, 0.0], [2.0, 3.0], [3.0, 1.0], [0.0, 2.0]])
    >>> least_common_p_values(known, np.array([[9.0, 9.0], [0.5, 0.5]]))
    array([0.2, 1. ])
    """
    ranked = known if isinstance(known, RankedPoints) else RankedPoints.of(known, weights)
    columns, others, weights = ranked
    n = columns.shape[1]
    step = max(1, BLOCK_CELLS // max(1, n))
    parts = [
        count_as_strange(columns, others, new[i : i + step], weights)
        for i in range(0, max(1, len(new)), step)
    ]
    return (1 + np.concatenate(parts)) / (n + 1)


def ranks_among_others(known: Float[np.ndarray, "n J"]) -> Int[np.ndarray, "J n"]:
    """Count how many of the other n - 1 known points are at least as large in each statistic."""
    return np.stack([len(x) - 1 - np.searchsorted(np.sort(x), x) for x in known.T])


def count_as_strange(
    columns: Any, others: Any, new: Any, weights: Sequence[int] | None = None
) -> Any:
    """Count the known points at most as common as each of ``new`` [Q, J], of arrays or tensors.

    Parameters
    ----------
    columns : [J, n]
        Statistics of the known points.
    others : [J, n]
        Ranks of the known points without the new one.
    new : [Q, J]
        Statistics of the new points.
    weights : sequence of J whole numbers or None
        Number of times that each statistic counts. None, the default: once each.
    """
    size, n = columns.shape
    pairs = [(columns[j], new[:, j, None]) for j in range(size)]
    ranks = [1 + others[j] + (x >= column) for j, (column, x) in enumerate(pairs)]
    known = _strangeness(ranks, n, weights)
    ours = _strangeness([1 + (column >= x).sum(1) for column, x in pairs], n, weights)
    return (known <= ours[:, None]).sum(1)


def own_p_values(
    known: Float[np.ndarray, "n J"], weights: Sequence[int] | None = None
) -> Float[np.ndarray, " n"]:
    """Return the p-value [n] of each known point among the other n - 1, as for a new one.

    A point and the others are the same n points whichever it is, so that their ranks say it all.

    Examples
    --------
    >>> own_p_values(np.array([[1.0, 0.0], [2.0, 3.0], [3.0, 1.0], [0.0, 2.0]])).tolist()
    [1.0, 0.25, 0.5, 0.75]
    """
    n = len(known)
    score = _strangeness(list(ranks_among_others(known) + 1), n - 1, weights)
    return np.searchsorted(np.sort(score), score, side="right") / n


def _strangeness(ranks: list[Any], n: int, weights: Sequence[int] | None) -> Any:
    """Return the least of J weighted ranks of n + 1 points, ties by their sum: small is strange."""
    weights = weights or [1] * len(ranks)
    common = math.lcm(*weights)  # whole numbers, so that ties stay ties
    least, total = common // weights[0] * ranks[0], ranks[0]
    for rank, weight in zip(ranks[1:], weights[1:], strict=True):
        least = namespace(rank).minimum(least, common // weight * rank)
        total = total + rank
    return least * (len(ranks) * (n + 1) + 1) + total


def conformal_quantile(held_out: ArrayLike, alpha: float, confidence: float | None = None) -> float:
    """Return q, below which a new score is with probability alpha or less; -inf for few scores.

    Parameters
    ----------
    held_out : [n]
        Held-out scores, infinite ones among them.
    alpha : float in (0, 1)
        Probability that a new score may be below q.
    confidence : float in (0, 1) or None
        Probability, over held-out scores, with which 1 - alpha holds for the new ones. The share
        above the k-th smallest is Beta(n + 1 - k, k) distributed, so that
        ``P(Binomial(n, alpha) < k) <= 1 - confidence`` (Vovk 2012, proposition 2a). None, the
        default: 1 - alpha on average over held-out scores.

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
    """Return the number of scores whose quantile has this rank: rank / alpha - 1, rounded up.

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
    """Return checked scores [n]; infinite ones have a rank, too."""
    scores = as_floats(name, values)
    if scores.ndim != 1 or np.isnan(scores).any():
        raise InputError(f"{name} has shape {scores.shape}, or NaN: pass [n] numbers.")
    return scores


def log_first_match(logit: Float[np.ndarray, "Q k"]) -> Float[np.ndarray, "Q k"]:
    """Return log pi [Q, k] of scores l [Q, k], nearest first; -inf where there is no neighbour.

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
    """Return log pi [Q] of the first neighbour that is a match [Q, k]; -inf without a match.

    Examples
    --------
    >>> np.exp(first_match_score(np.zeros((1, 3)), np.array([[False, True, True]])))
    array([0.25])
    """
    score = np.take_along_axis(log_first_match(logit), match.argmax(1)[:, None], 1)[:, 0]
    return np.where(match.any(1), score, -np.inf)
