"""Orderings by uncertainty: which queries to remove (sparsification), which to answer (abstention).

    AUSC = 1/0.99 int_0^0.99 mean{correct_q : q among the Q - floor(f Q) most certain} df
    AUSE = AUSC of the oracle, which removes the worst first, less AUSC

by the trapezoid rule on f = 0, 0.01, ..., 0.99 (Ilg et al. 2018, arXiv:1802.07095, of recall).
Abstention is the complement of the risk-coverage curve (El-Yaniv & Wiener 2010, JMLR 11). Tied
scores leave in random order: every curve is its exact expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores


def average_ties(scores: Float[Tensor, " Q"], values: Float[Tensor, " Q"]) -> Float[Tensor, " Q"]:
    """Each value [Q] replaced by the mean of its tie group: its expectation in a random order."""
    _, groups, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    sums = torch.zeros(counts.shape[0], dtype=values.dtype, device=values.device)
    means: Tensor = sums.index_add(0, groups, values) / counts
    return means[groups]


def mean_of_lowest(
    scores: Float[Tensor, " Q"], values: Float[Tensor, " Q"], counts: Int[Tensor, " T"]
) -> Float[Tensor, " T"]:
    """Expected mean of the ``counts`` [T] values of lowest scores, ties in random order."""
    ordered = average_ties(scores, values)[scores.argsort()]
    return ordered.cumsum(0)[counts - 1] / counts


def mean_height(x: Float[Tensor, " T"], y: Float[Tensor, " T"]) -> float:
    """Trapezoidal area under y(x) divided by the width of x."""
    return float((torch.trapezoid(y, x) / (x[-1] - x[0])).abs())


STEPS = 100
"""The removed share is 0, 1/100, ..., 99/100."""


@dataclass(frozen=True, repr=False)
class Sparsification(Shown):
    """Mean score of the queries that are left, against the share removed.

    Attributes
    ----------
    fractions : Tensor [100]
        Share of queries removed, 0 to 0.99.
    curve : Tensor [100]
        Mean score of the rest when the most uncertain go first.
    random, oracle : Tensor [100]
        The same in random order (its expectation, a constant) and when the worst go first.
    ausc, ausc_random, ausc_oracle : float
        Areas under the three curves divided by their width 0.99; 1 for a perfect model.
    ause : float
        Gap to the oracle, ``ausc_oracle - ausc``; 0 is the best ordering there is.
    n_queries : int
    """

    fractions: Tensor
    curve: Tensor
    random: Tensor
    oracle: Tensor
    ausc: float
    ausc_random: float
    ausc_oracle: float
    ause: float
    n_queries: int


def sparsification(uncertainty: ArrayLike, correct: ArrayLike) -> Sparsification:
    """Remove the share f of the most uncertain queries, score the rest, take the area over f.

    Parameters
    ----------
    uncertainty : [Q]
        Higher is less certain.
    correct : [Q]
        Score of each query in [0, 1], such as ``recall_at_k(...).per_query``; the gallery is that
        of all queries, whatever is removed.

    Returns
    -------
    Sparsification

    Raises
    ------
    InputError
        Mismatched lengths, or ``correct`` outside of [0, 1].
    NonFiniteError
        NaN or infinite values.

    Examples
    --------
    >>> result = sparsification([0.1, 0.2, 0.3, 0.4], [1, 1, 1, 0])
    >>> result.curve[[0, 24, 25, 99]].tolist(), result.ause
    ([0.75, 0.75, 1.0, 1.0], 0.0)
    """
    scores = as_scores("uncertainty", uncertainty)
    values = as_rates("correct", correct, scores, "uncertainty")
    steps = torch.arange(STEPS, device=scores.device)
    remaining = len(scores) - steps * len(scores) // STEPS
    fractions = steps.double() / STEPS
    curve = mean_of_lowest(scores, values, remaining)
    oracle = mean_of_lowest(-values, values, remaining)
    random = values.mean().expand(STEPS).clone()
    ausc, ausc_random, ausc_oracle = (
        mean_height(fractions, height) for height in (curve, random, oracle)
    )
    return Sparsification(
        fractions=fractions,
        curve=curve,
        random=random,
        oracle=oracle,
        ausc=ausc,
        ausc_random=ausc_random,
        ausc_oracle=ausc_oracle,
        ause=ausc_oracle - ausc,
        n_queries=len(scores),
    )


COVERAGE_STEPS = 20
"""The answered share is 20/20, 19/20, ..., 1/20."""


@dataclass(frozen=True, repr=False)
class Abstention(Shown):
    """Recall of the most certain queries, against the share of queries answered.

    Attributes
    ----------
    coverage : Tensor [20]
        Share answered: 1, 0.95, ..., 0.05.
    recall : Tensor [20]
        Mean score of the answered queries.
    area : float
        Area under recall over coverage divided by its width 0.95; 1 for a perfect model.
    monotonicity : float
        Share of the 19 steps to fewer answers at which recall does not fall; 1 is monotone.
    n_queries : int
    """

    coverage: Tensor
    recall: Tensor
    area: float
    monotonicity: float
    n_queries: int


def abstention(uncertainty: ArrayLike, correct: ArrayLike) -> Abstention:
    """Score the share p of the most certain queries, p = 1, 0.95, ..., 0.05.

    ``ceil(p Q)`` queries are answered, tied ones in random order.

    Parameters
    ----------
    uncertainty : [Q]
        Higher is less certain.
    correct : [Q]
        Score of each query in [0, 1], such as recall@1.

    Returns
    -------
    Abstention

    Raises
    ------
    InputError
        Mismatched lengths, or ``correct`` outside of [0, 1].
    NonFiniteError
        NaN or infinite values.

    Examples
    --------
    >>> result = abstention([0.1, 0.2, 0.3, 0.4], [1, 1, 1, 0])
    >>> result.recall[[0, 5, 19]].tolist(), result.monotonicity
    ([0.75, 1.0, 1.0], 1.0)
    """
    scores = as_scores("uncertainty", uncertainty)
    values = as_rates("correct", correct, scores, "uncertainty")
    steps = torch.arange(COVERAGE_STEPS, device=scores.device)
    answered = len(scores) - steps * len(scores) // COVERAGE_STEPS
    recall = mean_of_lowest(scores, values, answered)
    coverage = (COVERAGE_STEPS - steps).double() / COVERAGE_STEPS
    rounding = 1e-12
    steady = float((recall.diff() >= -rounding).double().mean())
    return Abstention(coverage, recall, mean_height(coverage, recall), steady, len(scores))
