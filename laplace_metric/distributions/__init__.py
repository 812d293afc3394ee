"""Distributions over embeddings, in space and on the unit sphere.

Those of a batch have ``mean``, ``variance``, ``sample`` and ``concentration``
(``EmbeddingDistribution``). NaN, infinity and variances below zero in the arguments of a function
or of a Gaussian are not refused: they pass through to the result, as in torch. Families on the
sphere that only other methods need are in ``baselines.distributions``.
"""

from laplace_metric.distributions._covariance import (
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    PendingCovariance,
    RotatedCovariance,
)
from laplace_metric.distributions._credible_caps import Angle, cap_angle, cap_cosine, outwards
from laplace_metric.distributions._empirical import EmbeddingDistribution, Empirical
from laplace_metric.distributions._gaussian import Gaussian, ProjectedNormal
from laplace_metric.distributions._vmf_normalizer import (
    concentration_of,
    log_vmf_normalizer,
    mean_resultant_length,
    vmf_concentration,
)

__all__ = [
    "Angle",
    "Covariance",
    "DenseCovariance",
    "DiagonalCovariance",
    "EmbeddingDistribution",
    "Empirical",
    "Gaussian",
    "PendingCovariance",
    "ProjectedNormal",
    "RotatedCovariance",
    "cap_angle",
    "cap_cosine",
    "concentration_of",
    "log_vmf_normalizer",
    "mean_resultant_length",
    "outwards",
    "vmf_concentration",
]
