"""Abstention: recall of the queries that are answered, against the share answered (coverage).

It is the complement of the risk-coverage curve (El-Yaniv & Wiener 2010, JMLR 11).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import ArrayLike, as_rates, as_scores
from laplace_metric.evaluation._orderings import mean_height, mean_of_lowest

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
        Number of queries.
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
        Uncertainty of each query; higher is less certain.
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
