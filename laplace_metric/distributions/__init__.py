"""Distributions over embeddings, in space and on the unit sphere.

Those of a batch have ``mean``, ``variance``, ``sample`` and ``concentration``
(``EmbeddingDistribution``); those on the sphere are ``torch.distributions`` as well. NaN,
infinity and variances below zero in the arguments of a function or of a Gaussian are not refused:
they pass through to the result, as in torch.
"""

from laplace_metric.distributions._angles import sample_angle
from laplace_metric.distributions._covariance import (
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    PendingCovariance,
    RotatedCovariance,
)
from laplace_metric.distributions._credible_caps import cap_angle, cap_cosine, in_cap
from laplace_metric.distributions._empirical import EmbeddingDistribution, Empirical
from laplace_metric.distributions._expected_likelihood import (
    log_expected_likelihood,
    pairwise_log_expected_likelihood,
)
from laplace_metric.distributions._gaussian import Gaussian, ProjectedNormal
from laplace_metric.distributions._non_isotropic_vmf import NonIsotropicVonMisesFisher
from laplace_metric.distributions._power_spherical import HypersphericalUniform, PowerSpherical
from laplace_metric.distributions._spherical_noise import SphericalGaussian, SphericalLaplace
from laplace_metric.distributions._vmf_normalizer import (
    concentration_of,
    log_vmf_normalizer,
    mean_resultant_length,
    vmf_concentration,
)
from laplace_metric.distributions._von_mises_fisher import (
    Directions,
    VonMisesFisher,
    unnormalized_vmf_score,
)

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
    "PendingCovariance",
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
    "sample_angle",
    "unnormalized_vmf_score",
    "vmf_concentration",
]
