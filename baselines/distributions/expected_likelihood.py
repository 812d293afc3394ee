"""Log of the expected likelihood kernel, ``log int p(x) q(x) dx``, of two embeddings.

    vMF        log C(k1) + log C(k2) - log C(|k1 mu1 + k2 mu2|)
               |k1 mu1 + k2 mu2|^2 = (k1 - k2)^2 + 2 k1 k2 (1 + cos)
    Gaussian   -1/2 sum_i [ (m1_i - m2_i)^2 / (v1_i + v2_i) + log 2 pi (v1_i + v2_i) ]

(Kirchhof et al. 2023, eq 55; Shi & Jain 2019, eq 3: the mutual likelihood score.) log C is taken as
a function of the squared length, so that the gradient is finite where the two directions cancel.
"""

from __future__ import annotations

import math
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from baselines.distributions.location_concentration import squared_chord
from baselines.distributions.vmf_normalizer import (
    log_vmf_normalizer,
    log_vmf_normalizer_of_square,
)
from baselines.distributions.von_mises_fisher import VonMisesFisher
from laplace_metric._utils.validation import check_broadcast
from laplace_metric.distributions._covariance import DiagonalCovariance
from laplace_metric.distributions._gaussian import Gaussian
from laplace_metric.errors import InputError

P = TypeVar("P", VonMisesFisher, Gaussian)


def log_expected_likelihood(p: P, q: P) -> Float[Tensor, " ..."]:
    """Return ``log int p q`` [...] of two von Mises-Fisher or two diagonal Gaussian distributions.

    Parameters
    ----------
    p, q : VonMisesFisher or Gaussian
        Distributions of one kind and one dimension; batches broadcast. The Gaussians' covariance is
        diagonal.

    Raises
    ------
    InputError
        For two kinds, two dimensions or a covariance that is not diagonal.

    Examples
    --------
    >>> import torch
    >>> p = VonMisesFisher(torch.eye(3), torch.tensor([0.0, 10.0, 10.0]))
    >>> log_expected_likelihood(p, p)  # log 1 / (4 pi) where it is uniform
    tensor([-2.5310, -0.2284, -0.2284])
    """
    _check(p, q)
    if isinstance(p, VonMisesFisher) and isinstance(q, VonMisesFisher):
        one_plus_cosine = squared_chord(p.loc, -q.loc) / 2
        return _kernel(p.concentration, q.concentration, one_plus_cosine, p.dimension)
    return _gaussian(p.mean, q.mean, _variances(p), _variances(q)).sum(-1)


def pairwise_log_expected_likelihood(p: P, q: P) -> Float[Tensor, "B C"]:
    """Return ``log int p_b q_c`` [B, C] for batches [B] and [C]: cosines by one matrix product.

    Arguments and errors as ``log_expected_likelihood``. Memory O(B C) for the von Mises-Fisher,
    O(B C D) for Gaussians.

    Examples
    --------
    >>> import torch
    >>> p = VonMisesFisher(torch.eye(3), 5.0)
    >>> pairwise_log_expected_likelihood(p, p).argmax(1)
    tensor([0, 1, 2])
    """
    _check(p, q, pairwise=True)
    if isinstance(p, VonMisesFisher) and isinstance(q, VonMisesFisher):
        one_plus_cosine = (1 + (p.loc @ q.loc.mT).double()).clamp_min(0)
        return _kernel(p.concentration[:, None], q.concentration, one_plus_cosine, p.dimension)
    apart = _gaussian(p.mean[:, None], q.mean, _variances(p)[:, None], _variances(q))
    return apart.sum(-1)  # of [B, C, D]


def _kernel(k1: Tensor, k2: Tensor, one_plus_cosine: Tensor, dimension: int) -> Tensor:
    """Compute in float64: its terms are of the size of k1 + k2, and cancel."""
    a, b = k1.double(), k2.double()
    square = (a - b).square() + 2 * a * b * one_plus_cosine.double()
    both = log_vmf_normalizer(a, dimension) + log_vmf_normalizer(b, dimension)
    return (both - log_vmf_normalizer_of_square(square, dimension)).to(k1.dtype)


def _gaussian(m1: Tensor, m2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    v = v1 + v2
    return -((m1 - m2).square() / v + (2 * math.pi * v).log()) / 2


def _variances(p: object) -> Tensor:
    if not isinstance(p, Gaussian) or not isinstance(p.covariance, DiagonalCovariance):
        raise InputError("The expected likelihood of Gaussians needs diagonal covariances.")
    return p.covariance.values


def _check(p: object, q: object, *, pairwise: bool = False) -> None:
    for kind in (VonMisesFisher, Gaussian):
        if isinstance(p, kind) and isinstance(q, kind):
            if p.loc.shape[-1] != q.loc.shape[-1]:
                raise InputError("p and q must have one dimension.")
            if not pairwise:
                check_broadcast(p=p.loc.shape, q=q.loc.shape)
            return
    raise InputError(f"No expected likelihood of {type(p).__name__} and {type(q).__name__}.")
