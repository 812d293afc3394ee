"""Distances of independent Gaussians with diagonal covariances, for a search.

Of ``x ~ N(mu_x, diag(v_x))`` and y likewise, with ``d = mu_x - mu_y`` and ``V = v_x + v_y``,
``x - y ~ N(d, diag(V))`` and

    E |x - y|^2   = sum_k d_k^2 + V_k            = CSD (Chun 2024, eq 1)
    Var |x - y|^2 = sum_k 2 V_k^2 + 4 d_k^2 V_k

as for any quadratic form of a normal (Mathai & Provost 1992, section 3.2b). The spread is of what
both inputs may mean, not of the weights, which two towers do not share.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.blocks import blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace import Distance
from laplace_metric.search._encoded import Encoded


class IndependentPairs:
    """Moments of ``|x - y|^2`` of queries and items, whose ``basis_inputs`` are their variances."""

    spherical = False

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """Return distances [Q, k] to the items at ``positions`` [Q, k]; infinite at -1."""
        mean, variance = torch.empty(2, *positions.shape).to(queries.mean)
        for block in blocks(len(positions), positions.shape[1] * queries.mean[:1].nbytes):
            rows = positions[block].clamp(min=0).to(items.mean.device)
            mu_y, v_y = (x[rows].to(queries.mean) for x in (items.mean, items.basis_inputs))
            d_2 = (queries.mean[block, None] - mu_y).square()  # [q, k, D]
            v = queries.basis_inputs[block, None] + v_y
            mean[block] = d_2.sum(-1) + v.sum(-1)
            variance[block] = (2 * v.square() + 4 * d_2 * v).sum(-1)
        absent = positions < 0
        far = (m.masked_fill(absent, torch.inf) for m in (mean, variance))
        return Distance(*far)
