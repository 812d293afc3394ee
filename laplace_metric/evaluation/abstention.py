"""Abstention: the recall of the share of queries that a system chooses to answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.evaluation._ordering import mean_height, mean_of_lowest
from laplace_metric.validation import ArrayLike, as_rates, as_scores

STEPS = 20
"""The answered share is 20/20, 19/20, ..., 1/20."""


@dataclass(frozen=True)
class Abstention:
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

    ``ceil(p Q)`` queries are answered; tied ones in random order, whose exact expectation this is.
    The complement of the risk-coverage curve (El-Yaniv & Wiener 2010, JMLR 11).

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
    InputError, NonFiniteError
        Mismatched lengths, ``correct`` outside of [0, 1], NaN or infinite values.

    Examples
    --------
    >>> result = abstention([0.1, 0.2, 0.3, 0.4], [1, 1, 1, 0])
    >>> result.recall[[0, 5, 19]].tolist(), result.monotonicity
    ([0.75, 1.0, 1.0], 1.0)
    """
    scores = as_scores("uncertainty", uncertainty)
    values = as_rates("correct", correct, scores, "uncertainty")
    steps = torch.arange(STEPS, device=scores.device)
    kept = len(scores) - steps * len(scores) // STEPS
    recall = mean_of_lowest(scores, values, kept)
    coverage = (STEPS - steps).double() / STEPS
    rounding = 1e-12
    steady = float((recall.diff() >= -rounding).double().mean())
    return Abstention(coverage, recall, mean_height(coverage, recall), steady, len(scores))
