"""The score of the explicit-concentration method: a von Mises-Fisher without its constant."""

from __future__ import annotations

from torch import Tensor


def unnormalized_vmf_score(loc: Tensor, concentration: Tensor, x: Tensor) -> Tensor:
    """``k mu.x`` [...] for loc and x [..., D], concentration [...].

    It ranks points as the density does for equal concentrations only. That a higher density implies
    a higher score (the method's Proposition 1) is false, as this pair of points shows.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric.distributions import VonMisesFisher
    >>> mu, k = torch.tensor([[1.0, 0.0, 0.0]] * 2), torch.tensor([1.0, 10.0])
    >>> x = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
    >>> VonMisesFisher(mu, k).log_prob(x)  # the first is the more likely ...
    tensor([-1.6925, -3.5353])
    >>> unnormalized_vmf_score(mu, k, x)  # ... and has the lower score
    tensor([1., 6.])
    """
    return concentration * (loc * x).sum(-1)
