"""Which neighbour is the first match: the score of retrieval sets.

With l the scores of the neighbours,

    log pi_j = log s_j + sum_{i < j} log(1 - s_i),   s = sigmoid(l)

is the probability that neighbour j is a match and none before it is, were matches independent. A
set of all neighbours with ``pi_j >= q`` is one of the smallest that hold the first match as often
(Sadinle, Lei & Wasserman 2019, for classes; here the classes are ranks): one item where the nearest
is sure, some where it is not, none where nothing looks like a match. That independence does not
hold costs size; the coverage comes from held-out queries.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float


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
