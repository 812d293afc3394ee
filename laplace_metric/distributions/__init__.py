"""Distributions over embeddings: ``mean``, ``variance``, ``sample``, ``concentration``."""

from laplace_metric.distributions.empirical import Empirical
from laplace_metric.distributions.gaussian import DiagonalGaussian
from laplace_metric.distributions.projected_normal import ProjectedNormal
from laplace_metric.distributions.protocol import EmbeddingDistribution
from laplace_metric.distributions.vmf import vmf_concentration

__all__ = [
    "DiagonalGaussian",
    "EmbeddingDistribution",
    "Empirical",
    "ProjectedNormal",
    "vmf_concentration",
]
