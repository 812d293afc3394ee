"""Distributions over embeddings, in space and on the unit sphere.

Those of a batch have ``mean``, ``variance``, ``sample`` and ``concentration``
(``EmbeddingDistribution``). NaN, infinity and variances below zero in the arguments of a function
or of a Gaussian are not refused: they pass through to the result, as in torch. Families on the
sphere that only other methods need, draws, and the normaliser of the von Mises-Fisher are in
``baselines.distributions``.
"""

from laplace_metric.distributions._concatenated import Concatenated
from laplace_metric.distributions._covariance import Covariance, DenseCovariance, DiagonalCovariance
from laplace_metric.distributions._embedding_distribution import EmbeddingDistribution
from laplace_metric.distributions._gaussian import Gaussian, ProjectedNormal
from laplace_metric.distributions._von_mises_fisher import cap_angle, cap_cosine, vmf_concentration

__all__ = [
    "Concatenated",
    "Covariance",
    "DenseCovariance",
    "DiagonalCovariance",
    "EmbeddingDistribution",
    "Gaussian",
    "ProjectedNormal",
    "cap_angle",
    "cap_cosine",
    "vmf_concentration",
]
