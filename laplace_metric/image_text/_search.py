"""Texts that find images and images that find texts: what an ``Index`` needs of two towers.

Of independent Gaussians with diagonal covariances, ``x ~ N(mu_x, diag(v_x))`` and y likewise, with
``d = mu_x - mu_y`` and ``V = v_x + v_y``, ``x - y ~ N(d, diag(V))`` and

    E |x - y|^2   = sum_k d_k^2 + V_k            = CSD (Chun 2024, eq 1)
    Var |x - y|^2 = sum_k 2 V_k^2 + 4 d_k^2 V_k

as for any quadratic form of a normal (Mathai & Provost 1992, section 3.2b). The spread is of what
both inputs may mean, not of the weights, which two towers do not share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.image_text._fit import FittedHeads, Towers
from laplace_metric.image_text._heads import GaussianHead
from laplace_metric.image_text._pairs import Encoder, encoded_blocks
from laplace_metric.image_text._posterior import TowerPosterior, embedding_of
from laplace_metric.io import digest
from laplace_metric.laplace import Distance
from laplace_metric.models._calling import Inputs
from laplace_metric.models._store import Fingerprints, row_fingerprints
from laplace_metric.search._items import Encoded

PAIR_BYTES = 2**24
"""Of the variances of pairs that are held at once."""


class IndependentPairs:
    """Moments of ``|x - y|^2`` of queries and items, whose ``basis_inputs`` are their variances."""

    spherical = False

    @full_precision()
    @torch.no_grad()
    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """[Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""
        mean, variance = torch.empty(2, *positions.shape).to(queries.mean)
        step = max(1, PAIR_BYTES // (positions.shape[1] * queries.mean[:1].nbytes))
        for start in range(0, len(positions), step):
            block = slice(start, start + step)
            rows = positions[block].clamp(min=0).to(items.mean.device)
            mu_y, v_y = (x[rows].to(queries.mean) for x in (items.mean, items.basis_inputs))
            d_2 = (queries.mean[block, None] - mu_y).square()  # [q, k, D]
            v = queries.basis_inputs[block, None] + v_y
            mean[block] = d_2.sum(-1) + v.sum(-1)
            variance[block] = (2 * v.square() + 4 * d_2 * v).sum(-1)
        absent = positions < 0
        far = (m.masked_fill(absent, torch.inf) for m in (mean, variance))
        return Distance(*far)


@dataclass(frozen=True, eq=False)
class TowerEncoder:
    """One encoder with its head and posterior, as a search encodes items or queries.

    Parameters
    ----------
    encoder : nn.Module or function
    head : GaussianHead
    posterior : TowerPosterior or None
    identity : str
    fitted_rows : uint64 [N] or None
        Fingerprints of what entered the head in the fit.
    """

    spherical = False
    pairs = IndependentPairs()

    encoder: Encoder
    head: GaussianHead
    posterior: TowerPosterior | None
    identity: str
    fitted_rows: Fingerprints | None = None

    @property
    def rankings(self) -> tuple[str, ...]:
        """Also "expected", which is CSD, where there are variances."""
        return ("mean",) if self.head.log_variance is None else ("mean", "expected")

    @torch.no_grad()
    def all(
        self,
        name: str,
        inputs: Inputs,
        *,
        progress: bool,
        rows: list[Fingerprints] | None = None,
    ) -> tuple[Encoded, list[Any]]:
        """Encode all that ``inputs`` holds; never labels. ``rows`` gets fingerprints.

        Raises
        ------
        InputError, NonFiniteError
            For no inputs, features of another size than in the fit, NaN and infinity.
        """
        parts = []
        for features in encoded_blocks(self.encoder, inputs, name, progress=progress):
            embedding = embedding_of(features, self.head, self.posterior)
            if rows is not None:
                rows.append(row_fingerprints(self.head(features.to(embedding.mean)).inputs))
            trace = embedding.uncertainty
            epistemic = trace if self.posterior is None else embedding.epistemic.to(trace)
            parts.append(Encoded(embedding.mean, trace, epistemic, embedding.variance))
        return Encoded.concatenate(parts), []


def tower_encoders(
    towers: Towers, fitted: FittedHeads
) -> tuple[tuple[TowerEncoder, TowerEncoder], tuple[TowerEncoder, TowerEncoder]]:
    """Return the encoders of items and queries: images that texts find, texts that images find."""
    heads, posteriors = fitted.heads, fitted.posteriors or (None, None)
    tensors = list(heads.state_dict().values())
    tensors += [t.posterior.spectrum for t in posteriors if t is not None]
    names = " ".join(heads.state_dict())
    image, text = (digest(f"{side} {names}", tensors) for side in ("images", "texts"))
    images = TowerEncoder(towers.image, heads.image, posteriors[0], image, fitted.fingerprints)
    texts = TowerEncoder(towers.text, heads.text, posteriors[1], text)
    return (images, texts), (texts, images)
