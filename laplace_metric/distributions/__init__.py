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
from laplace_metric.distributions.vmf_normalizer import (
    concentration_of,
    log_vmf_normalizer,
    mean_resultant_length,
)
from laplace_metric.distributions.von_mises_fisher import VonMisesFisher

__all__ = [
    "Covariance",
    "DenseCovariance",
    "DiagonalCovariance",
    "EmbeddingDistribution",
    "Empirical",
    "Gaussian",
    "ProjectedNormal",
    "RotatedCovariance",
    "VonMisesFisher",
    "concentration_of",
    "log_vmf_normalizer",
    "mean_resultant_length",
    "vmf_concentration",
]
