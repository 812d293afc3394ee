"""``predictive_vectors`` as a plain graph, from buffers (equations: ``_predictive_vectors``)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.laplace._earlier_layer import EarlierLayer
from laplace_metric.laplace._predictive_vectors import TINY, PredictiveVectors


class RankedVectors(NamedTuple):
    """Vectors by which an index ranks: a map, its temperature, and an earlier layer or None."""

    vectors: PredictiveVectors
    factor: float
    layer: EarlierLayer | None


class PredictiveOutput(nn.Module):
    """Head inputs h [B, D] and raw embeddings z [B, Z] -> predictive vectors [B, d].

    Parameters
    ----------
    vectors : PredictiveVectors
        Map of the fit, or of a ranking with columns, prior and centre of its own.
    factor : float >= 0
        Temperature, in units of that of ``Fitted.predictive_posterior``.
    layer : EarlierLayer or None
        Layer whose input g [B, E] ranks, too. None, the default: none.
    """

    root: Tensor
    centre: Tensor
    directions: Tensor

    def __init__(
        self, vectors: PredictiveVectors, factor: float, layer: EarlierLayer | None = None
    ) -> None:
        super().__init__()
        self.layout, self.spherical = vectors.layout, vectors.spherical
        root = (factor * vectors.variances).sqrt()
        whole = root.diag() if vectors.basis is None else vectors.basis * root
        centre = torch.zeros_like(root) if vectors.centre is None else vectors.centre
        own = centre * root
        if vectors.columns is not None:
            whole, own = whole[:, vectors.columns], own[vectors.columns]
        self.register_buffer("root", whole.clone())
        self.register_buffer("centre", torch.cat([centre @ vectors.weights.mT, own]))
        self.layer = layer
        if layer is not None:
            self.register_buffer("directions", layer.directions.to(root).clone())

    def forward(
        self, h: Float[Tensor, "B D"], z: Float[Tensor, "B Z"], g: Float[Tensor, "B E"] | None
    ) -> Float[Tensor, "B d"]:
        """Return ``[z ; C^(1/2) h]``, of length 1 where embeddings are directions."""
        own = self.layout.augment(h.to(self.root.dtype)) @ self.root
        v = torch.cat([z.to(self.root.dtype), own], dim=1) - self.centre
        if self.spherical:
            v = _directions(v)
        if self.layer is None or g is None:
            return v
        mine, other = self.layer.roots(spherical=self.spherical)
        u = _directions(g.to(self.root.dtype) @ self.directions)
        return torch.cat([mine * v, other * u], dim=1)


def _directions(x: Float[Tensor, "B d"]) -> Float[Tensor, "B d"]:
    return x / x.square().sum(1, keepdim=True).sqrt().clamp_min(TINY)
