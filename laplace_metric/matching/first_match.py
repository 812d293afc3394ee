"""Which neighbour is the first match: the score of retrieval sets.

    log pi_j = log s_j + sum_{i < j} log(1 - s_i),   s = sigmoid(l)

is the probability that neighbour j is a match and none before it is, were matches independent. A
set of all neighbours with ``pi_j >= q`` is one of the smallest that hold the first match as often
(Sadinle, Lei & Wasserman 2019, for classes; here the classes are ranks): one item where the nearest
is sure, some where it is not, none where nothing looks like a match. That independence does not
hold costs size; the coverage comes from held-out queries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def log_first_match(logit: Tensor) -> Tensor:
    """log pi [Q, k] of scores l [Q, k], nearest neighbour first; -inf where there is none.

    Examples
    --------
    >>> log_first_match(torch.tensor([[0.0, 0.0, 0.0]])).exp()
    tensor([[0.5000, 0.2500, 0.1250]])
    """
    missed = logsigmoid(-logit)
    return logsigmoid(logit) + missed.cumsum(1) - missed


def of_first_match(logit: Tensor, match: Tensor) -> Tensor:
    """log pi [Q] of the first neighbour that is a match [Q, k]; -inf where none is.

    Examples
    --------
    >>> of_first_match(torch.zeros(1, 3), torch.tensor([[False, True, True]])).exp()
    tensor([0.2500])
    """
    first = match.to(torch.uint8).argmax(1, keepdim=True)
    score = log_first_match(logit).gather(1, first)[:, 0]
    return score.masked_fill(~match.any(1), -torch.inf)
