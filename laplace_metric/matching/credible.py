"""Credible sets of a query (Kirchhof et al. 2023, MCInfoNCE, section 5.3 and C.5).

The items whose mean direction lies in the smallest cap that holds the query's latent direction
with probability p under a von Mises-Fisher of the query's concentration:

    {j : mu_q . mu_j >= t},    P(mu_q . z >= t) = p

(printed with <=, which is the complement). A property of the query's posterior alone: it says where
the query may lie, and promises nothing about labels; ``Index.retrieval_sets`` does.
"""

from __future__ import annotations

from torch import Tensor

from laplace_metric.distributions.credible_caps import cap_angle
from laplace_metric.distributions.vmf import vmf_concentration


def credible_radius(trace: Tensor, dimension: int, probability: float) -> Tensor:
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
