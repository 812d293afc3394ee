"""Families on the unit sphere, as ``torch.distributions``, and expected likelihood kernels."""

from baselines.distributions.angles import sample_angle
from baselines.distributions.credible_caps import in_cap
from baselines.distributions.expected_likelihood import (
    log_expected_likelihood,
    pairwise_log_expected_likelihood,
)
from baselines.distributions.non_isotropic_vmf import NonIsotropicVonMisesFisher
from baselines.distributions.power_spherical import HypersphericalUniform, PowerSpherical
from baselines.distributions.spherical_noise import SphericalGaussian, SphericalLaplace
from baselines.distributions.vmf_normalizer import log_vmf_normalizer, mean_resultant_length
from baselines.distributions.von_mises_fisher import (
    Directions,
    VonMisesFisher,
    unnormalized_vmf_score,
)

__all__ = [
    "Directions",
    "HypersphericalUniform",
    "NonIsotropicVonMisesFisher",
    "PowerSpherical",
    "SphericalGaussian",
    "SphericalLaplace",
    "VonMisesFisher",
    "in_cap",
    "log_expected_likelihood",
    "log_vmf_normalizer",
    "mean_resultant_length",
    "pairwise_log_expected_likelihood",
    "sample_angle",
    "unnormalized_vmf_score",
]
