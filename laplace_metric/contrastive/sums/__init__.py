"""Summands: what is summed over points and pairs, one file a structure."""

from laplace_metric.contrastive.sums.dense import GeneralDense, LinearDense
from laplace_metric.contrastive.sums.diagonal import LayeredDiagonal
from laplace_metric.contrastive.sums.general import GeneralDiagonal
from laplace_metric.contrastive.sums.kronecker import LeftContraction, RightContraction
from laplace_metric.contrastive.sums.protocol import Slab, Summand, Terms, add_terms

__all__ = [
    "GeneralDense",
    "GeneralDiagonal",
    "LayeredDiagonal",
    "LeftContraction",
    "LinearDense",
    "RightContraction",
    "Slab",
    "Summand",
    "Terms",
    "add_terms",
]
