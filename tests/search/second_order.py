"""The second order of a squared distance under shared weights, from covariances of the pair."""

from __future__ import annotations

from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.laplace import Distance
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.laplace.distance._embedding_pairs import EmbeddingPairs
from laplace_metric.laplace.distance._squared_distance import squared_distance


def second_order(embedder: LaplaceEmbedder, x: Tensor, y: Tensor) -> Distance:
    """Return what ``Index.search`` computes of these pairs."""
    fitted = embedder.fitted_
    a, b = embedder.activations(x), embedder.activations(y)
    sides = [(a.features, None), (b.features, None), (a.features, b.features)]
    covariances = [covariance(fitted.jacobian, fitted.posterior, *side) for side in sides]
    return squared_distance(EmbeddingPairs(a.raw, b.raw, *covariances), spherical=fitted.spherical)
