"""The posterior of a fit as points that were not in it see it.

A fitted point is sure where it made itself sure: its own term is part of the curvature. With fewer
points than inputs of the head, new ones vary up to fifty times as much. A ridge regression corrects
this in closed form: of N fitted points, each with one term ``a a^T`` in one precision, the variance
of a new one is that of a fitted one times

    1 / (1 - g / N)        g = sum_k g_k,   g_k = n_eff l_k / (n_eff l_k + tau w_k)

on average (generalized cross-validation: Golub, Heath and Wahba 1979), with g the number of
directions that the data determine. Directions that they leave to the prior (g_k = 0) vary as much
in a fitted point as in a new one. So direction k of a group gets

    T / p_k  ->  T / p_k (1 + g_k c)        c = (g / N) / (1 - g / N)  *  g / sum_k g_k^2

in which c leaves the average what it is above where inputs have in direction k what the curvature
has, ``E a_k^2 ~ l_k``. A group are the directions in which a point has one term:

    kron: the inputs of one output direction of a layer     N terms
    full: all of them                                       N Z terms, N (Z - 1) of directions
    diag: each by itself, as products between them are 0    N terms, c = 1 / (N - g_k)

With hessian="positives", N is N - C of C classes: a class of n_c points has n_c - 1 differences.

On trained networks of 16 to 128 numbers and 577 inputs the average is right within a fifth for 100
to 3,200 points, where fitted points vary up to 62 times less.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._eigenbases import DenseEigenbasis, KroneckerEigenbasis
from laplace_metric.laplace._posterior import Posterior

LEAST = 1e-9
"""Smallest share of a point's terms that counts as left over by the determined directions."""


def as_new_points_see(posterior: Posterior, n_terms: int, n_coordinates: int) -> Posterior:
    """Return a posterior under which fitted points vary as new ones do under the given one.

    Its eigenvectors, mean and temperature are the same. It is for sizes alone: no precision of a
    curvature and a prior.

    Parameters
    ----------
    posterior : Posterior
        Posterior of the fit.
    n_terms : int
        Number N of independent terms of the curvature for each output, at least 1 (``n_terms``).
    n_coordinates : int
        Number of coordinates in which an embedding moves: Z, or Z - 1 of directions.

    Examples
    --------
    Without data in any direction, new points vary as the fitted ones:

    >>> from laplace_metric.curvature._structures import DiagCurvature
    >>> curvature = DiagCurvature(torch.tensor([1.0, 0.0])).decompose()
    >>> p = Posterior(torch.zeros(2), curvature, n_effective=3, prior_precision=1)
    >>> p.variance, as_new_points_see(p, 3, 1).variance
    (tensor([0.2500, 1.0000]), tensor([0.3333, 1.0000]))
    """
    gained = posterior.n_effective * posterior.curvature.eigenvalues.double()
    precision = gained + posterior.prior()
    seen = precision / _factors(posterior, gained / precision, n_terms, n_coordinates)
    # any split of the precisions into a prior and a curvature has the same covariance
    prior = float(seen.min())
    curvature = replace(posterior.curvature, eigenvalues=seen - prior, standard_error=None)
    return replace(
        posterior, curvature=curvature, n_effective=1.0, prior_precision=prior, prior_weights=None
    )


def n_terms(labels: Int[Tensor, " N"], loss: ContrastiveLoss) -> int:
    """Return how many independent terms each output has: N points, or N - C of C classes.

    Pairs of one class alone ("positives") know of differences within classes only.

    Examples
    --------
    >>> y = torch.arange(12) % 3
    >>> n_terms(y, ContrastiveLoss.of("arccos", "fixed", normalized=False))
    12
    >>> n_terms(y, ContrastiveLoss.of("euclidean", "positives", normalized=False))
    9
    """
    within = loss.cross and not loss.negatives
    return max(1, len(labels) - (len(labels.unique()) if within else 0))


def _factors(
    posterior: Posterior, determined: Float[Tensor, " P"], n_terms: int, n_coordinates: int
) -> Float[Tensor, " P"]:
    """Return ``1 + g_k c`` of each direction."""
    basis = posterior.curvature.basis
    if isinstance(basis, KroneckerEigenbasis):
        sizes = [block.layout.n_parameters for block in basis.blocks]
        parts = zip(basis.blocks, determined.split(sizes), strict=True)
        return torch.cat([_of_groups(block.fold(g), n_terms).flatten() for block, g in parts])
    if isinstance(basis, DenseEigenbasis):
        return _of_groups(determined, n_terms * n_coordinates)
    return _of_groups(determined[:, None], n_terms)[:, 0]


def _of_groups(determined: Float[Tensor, "*g k"], n_terms: int) -> Float[Tensor, "*g k"]:
    """Return ``1 + g_k c`` of groups of directions [*g, k] that have ``n_terms`` terms each."""
    total = determined.sum(-1, keepdim=True)
    squares = determined.square().sum(-1, keepdim=True)
    share = total / n_terms
    c = share / (1 - share).clamp_min(LEAST) * total / squares.clamp_min(1e-300)
    return 1 + determined * c
