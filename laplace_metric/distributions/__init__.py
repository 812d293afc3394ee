"""Distributions over embeddings: ``mean``, ``variance``, ``sample``, ``concentration``."""

from laplace_metric.distributions import spherical_divergence as spherical_divergence
from laplace_metric.distributions.covariance import (
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    RotatedCovariance,
)
from laplace_metric.distributions.credible_caps import cap_angle, cap_cosine, in_cap
from laplace_metric.distributions.directions import Directions
from laplace_metric.distributions.empirical import Empirical
from laplace_metric.distributions.expected_likelihood import (
    log_expected_likelihood,
    pairwise_log_expected_likelihood,
)
from laplace_metric.distributions.gaussian import Gaussian
from laplace_metric.distributions.hyperspherical_uniform import HypersphericalUniform
from laplace_metric.distributions.non_isotropic_vmf import NonIsotropicVonMisesFisher
from laplace_metric.distributions.power_spherical import PowerSpherical
from laplace_metric.distributions.projected_normal import ProjectedNormal
from laplace_metric.distributions.protocol import EmbeddingDistribution
from laplace_metric.distributions.spherical_noise import SphericalGaussian, SphericalLaplace
from laplace_metric.distributions.unnormalized_vmf import unnormalized_vmf_score
from laplace_metric.distributions.vmf import vmf_concentration
from laplace_metric.distributions.vmf_inverse import concentration_of
from laplace_metric.distributions.vmf_normalizer import (
    log_vmf_normalizer,
    mean_resultant_length,
)
from laplace_metric.distributions.von_mises_fisher import VonMisesFisher

__all__ = [
    "Covariance",
    "DenseCovariance",
    "DiagonalCovariance",
    "Directions",
    "EmbeddingDistribution",
    "Empirical",
    "Gaussian",
    "HypersphericalUniform",
    "NonIsotropicVonMisesFisher",
    "PowerSpherical",
    "ProjectedNormal",
    "RotatedCovariance",
    "SphericalGaussian",
    "SphericalLaplace",
    "VonMisesFisher",
    "cap_angle",
    "cap_cosine",
    "concentration_of",
    "in_cap",
    "log_expected_likelihood",
    "log_vmf_normalizer",
    "mean_resultant_length",
    "pairwise_log_expected_likelihood",
    "unnormalized_vmf_score",
    "vmf_concentration",
]
