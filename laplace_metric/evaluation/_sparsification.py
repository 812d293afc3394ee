"""Sparsification: the mean score of the queries that are left when the most uncertain are removed.

    AUSC = 1/0.99 int_0^0.99 mean{correct_q : q among the Q - floor(f Q) most certain} df
    AUSE = AUSC of the oracle, which removes the worst first, less AUSC

by the trapezoid rule on f = 0, 0.01, ..., 0.99 (Ilg et al. 2018, arXiv:1802.07095, of recall).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores
from laplace_metric.evaluation._orderings import mean_height, mean_of_lowest

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
        Mean score of the rest in random order (its expectation, a constant), and when the worst go
        first.
    ausc, ausc_random, ausc_oracle : float
        Areas under the three curves divided by their width 0.99; 1 for a perfect model.
    ause : float
        Gap to the oracle, ``ausc_oracle - ausc``; 0 is the best ordering there is.
    n_queries : int
        Number of queries.
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
        Uncertainty of each query; higher is less certain.
    correct : [Q]
        Score of each query in [0, 1], such as ``recall_at_k(...).per_query``; the gallery holds
        all queries, whatever is removed.

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
