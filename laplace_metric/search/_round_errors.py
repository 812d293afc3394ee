"""Moments of distances from means and traces alone: errors that are independent and round.

Of an item with D head inputs and Z outputs an index stores D + Z numbers, the D of them so that
distances can know which weights both embeddings share. Without them, errors count as independent
and the same in all directions: with m and s of ``_expected_vectors`` and
``v = (s_x^2 + s_y^2) / Z``

    E|x - y|^2 = |m_x - m_y|^2 + Z v                     exact for independent errors
    Var|x - y|^2 = 4 |m_x - m_y|^2 v + 2 Z v^2           of a Gaussian that is round

Shared weights cancel where x and y are alike, so these deviations of near neighbours are too large;
a calibration learns what they are worth.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace import Distance
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._expected_vectors import moments

COMPACT_BYTES = 2**24
"""Bytes of the means of items that are gathered at once."""


class RoundErrors:
    """Moments of the squared distance of (query, item) pairs, from means and traces alone.

    Parameters
    ----------
    spherical : bool
        True if embeddings are directions.
    """

    def __init__(self, *, spherical: bool) -> None:
        self.spherical = spherical

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """Return moments [Q, k] for the items at ``positions``; those at -1 are infinitely far."""
        mean, variance = torch.empty(2, *positions.shape).to(queries.mean)
        n_outputs, spherical = queries.mean.shape[1], self.spherical
        step = max(1, COMPACT_BYTES // (positions.shape[1] * queries.mean[:1].nbytes))
        for start in range(0, len(positions), step):
            block = slice(start, start + step)
            rows = positions[block].clamp(min=0).to(items.mean.device)
            of_items = (x[rows.flatten()].to(queries.mean) for x in (items.mean, items.trace))
            m_y, s_y = moments(*of_items, spherical=spherical)
            m_x, s_x = moments(queries.mean[block], queries.trace[block], spherical=spherical)
            d_2 = (m_x[:, None] - m_y.view(*rows.shape, -1)).square().sum(-1)
            v = (s_x.square()[:, None] + s_y.square().view_as(rows)) / n_outputs
            mean[block] = d_2 + n_outputs * v
            variance[block] = 4 * d_2 * v + 2 * n_outputs * v.square()
        nobody = positions < 0
        return Distance(*(m.masked_fill(nobody, torch.inf) for m in (mean, variance)))
