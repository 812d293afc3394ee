"""How little the pairs determine a projection: curvature of both losses, and the posterior.

_curvature          Gauss-Newton of the pairwise sigmoid loss over all N M pairs
_softmax_curvature  the same of InfoNCE
_tower              N(W, (n_eff H + tau I)^-1), and the embeddings that it gives
"""

from laplace_metric.image_text.posterior._curvature import (
    TowerPairs,
    nearest_factors,
    tower_curvature,
)
from laplace_metric.image_text.posterior._softmax_curvature import SoftmaxPairs
from laplace_metric.image_text.posterior._tower import (
    TowerPosterior,
    around,
    curvature_as_tensors,
    curvature_from_tensors,
    embedding_of,
    fit_tower,
)

__all__ = [
    "SoftmaxPairs",
    "TowerPairs",
    "TowerPosterior",
    "around",
    "curvature_as_tensors",
    "curvature_from_tensors",
    "embedding_of",
    "fit_tower",
    "nearest_factors",
    "tower_curvature",
]
