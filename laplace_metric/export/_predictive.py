"""``predictive_vectors`` as a plain graph, from buffers (equations: ``_predictive_vectors``)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.laplace._predictive_vectors import TINY, PredictiveVectors


class PredictiveOutput(nn.Module):
    """Head inputs h [B, D] and raw embeddings z [B, Z] -> predictive vectors [B, Z + A].

    Parameters
    ----------
    vectors : PredictiveVectors
        Map of the fit.
    factor : float > 0
        Temperature, in units of that of ``Fitted.predictive_posterior``.
    """

    root: Tensor

    def __init__(self, vectors: PredictiveVectors, factor: float) -> None:
        super().__init__()
        self.layout, self.spherical = vectors.layout, vectors.spherical
        root = (factor * vectors.variances).sqrt()
        self.register_buffer("root", root.diag() if vectors.basis is None else vectors.basis * root)

    def forward(
        self, h: Float[Tensor, "B D"], z: Float[Tensor, "B Z"]
    ) -> Float[Tensor, "B Z_plus_A"]:
        """Return ``[z ; C^(1/2) h]``, of length 1 where embeddings are directions."""
        own = self.layout.augment(h.to(self.root.dtype)) @ self.root
        v = torch.cat([z.to(self.root.dtype), own], dim=1)
        if not self.spherical:
            return v
        return v / v.square().sum(1, keepdim=True).sqrt().clamp_min(TINY)
