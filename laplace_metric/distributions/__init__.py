"""Distributions over embeddings: ``mean``, ``variance``, ``sample``, ``concentration``."""

from laplace_metric.distributions.covariance import (
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    RotatedCovariance,
)
from laplace_metric.distributions.empirical import Empirical
from laplace_metric.distributions.gaussian import Gaussian
from laplace_metric.distributions.projected_normal import ProjectedNormal
from laplace_metric.distributions.protocol import EmbeddingDistribution
from laplace_metric.distributions.vmf import vmf_concentration

__all__ = [
    "Covariance",
    "DenseCovariance",
    "DiagonalCovariance",
    "EmbeddingDistribution",
    "Empirical",
    "Gaussian",
    "ProjectedNormal",
    "RotatedCovariance",
    "vmf_concentration",
]
