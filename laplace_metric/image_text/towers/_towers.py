"""Two fitted towers: heads and posteriors, embeddings, and what an ``Index`` needs of each.

Texts find images, and images find texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.image_text._head import GaussianHead, HeadOutput
from laplace_metric.image_text._inclusion_calibration import InclusionCalibration
from laplace_metric.image_text.objectives._objectives import TwoHeads
from laplace_metric.image_text.towers._encoder_features import (
    SIDES,
    Encoder,
    encode_all,
    encoded_blocks,
)
from laplace_metric.image_text.towers._spread import Spread
from laplace_metric.image_text.towers._tower_posterior import TowerPosterior, fit_posteriors
from laplace_metric.inputs import Inputs, read_items
from laplace_metric.io import digest
from laplace_metric.laplace import Distance
from laplace_metric.models._fingerprints import Fingerprints, row_fingerprints, sorted_fingerprints
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._protocols import LastLayerAlone

BLOCK = 256
"""Features that enter a head at once."""


@torch.no_grad()
@full_precision()
def embedding_of(
    features: Float[Tensor, "B ..."], head: GaussianHead, posterior: TowerPosterior | None
) -> Embedding:
    """Return ``N(mu, S)`` of features, with a measure of how little the pairs determine mu.

    Raises
    ------
    InputError
        For features of another size than those of the fit.
    """
    if features.shape[1:] != head.shape:
        sizes = [" x ".join(map(str, shape)) for shape in (features.shape[1:], head.shape)]
        raise InputError(f"features have size {sizes[0]}, in the fit it was {sizes[1]}.")
    batches = features.to(head.mean.weight).split(BLOCK)
    parts = zip(*(head(batch) for batch in batches), strict=True)
    out = HeadOutput(*(torch.cat(part) for part in parts))
    gaussian = Gaussian(out.mu, out.log_v.exp())
    if posterior is None:
        return Embedding(gaussian)
    entering = torch.cat([head.entering(batch) for batch in batches])
    return Embedding(gaussian, head_inputs=entering, near_far=posterior)


@torch.no_grad()
def entering_features(name: str, features: Tensor, head: GaussianHead) -> Tensor:
    """Return features in the type of a head, or raise ``InputError`` if it has no use for them."""
    if features.shape[1:] != head.shape:
        sizes = [" x ".join(map(str, shape)) for shape in (features.shape[1:], head.shape)]
        raise InputError(f"features of {name} have size {sizes[0]}, their head takes {sizes[1]}.")
    features = features.to(head.mean.weight)
    lengths = [head(block).raw.norm(dim=1) for block in features.split(BLOCK)]
    if len(none := (torch.cat(lengths) == 0).nonzero().flatten()):
        raise InputError(
            f"features of {name} in row {int(none[0])} are projected to 0, which has no direction "
            f"({len(none)} such rows): leave these inputs out."
        )
    return features


@dataclass
class FittedHeads:
    """Result of ``fit``.

    Parameters
    ----------
    heads : TwoHeads
        Trained heads of both towers.
    posteriors : of the image and of the text tower, or None
        Posteriors of the image tower and of the text tower; None before the fit, and for
        an objective without a Laplace posterior.
    losses : list of float
        Mean loss of each epoch.
    spreads : dict
        Spreads of "images" and of "texts", one each epoch.
    inclusion : InclusionCalibration or None
        Calibration of the inclusion score, if there is one.
    fingerprints : uint64 [N] or None
        Sorted fingerprints of the images of the fit; None in files that have none.
    given : bool
        True for projections of a model that is there already, which are not trained. Default:
        False.
    """

    heads: TwoHeads
    posteriors: tuple[TowerPosterior, TowerPosterior] | None = None
    losses: list[float] = field(default_factory=list)
    spreads: dict[str, list[Spread]] = field(default_factory=dict)
    inclusion: InclusionCalibration | None = None
    fingerprints: Fingerprints | None = None
    given: bool = False

    def with_posteriors(
        self, features: tuple[Tensor, Tensor], n_effective: float | None, prior_precision: float
    ) -> FittedHeads:
        """Return these heads with posteriors and fingerprints from the features of all inputs.

        Raises
        ------
        InputError
            For features of another size than the heads take, and those that project to 0.
        """
        features = tuple(  # type: ignore[assignment]
            entering_features(side, part, head)
            for side, part, head in zip(SIDES, features, self.heads.both, strict=True)
        )
        posteriors = fit_posteriors(self.heads, features, n_effective, prior_precision)
        with torch.no_grad():
            batches = features[0].split(BLOCK)
            rows = [row_fingerprints(self.heads.image(batch).inputs) for batch in batches]
        return replace(self, posteriors=posteriors, fingerprints=sorted_fingerprints(rows))


class IndependentPairs:
    """Moments of ``|x - y|^2`` of queries and items, whose ``basis_inputs`` are their variances.

    Of ``x ~ N(mu_x, diag(v_x))`` and y likewise, with ``d = mu_x - mu_y`` and ``V = v_x + v_y``,
    ``x - y ~ N(d, diag(V))`` and

        E |x - y|^2   = sum_k d_k^2 + V_k            = CSD (Chun 2024, eq 1)
        Var |x - y|^2 = sum_k 2 V_k^2 + 4 d_k^2 V_k

    as for any quadratic form of a normal (Mathai & Provost 1992, section 3.2b). The spread is of
    what both inputs may mean, not of the weights, which two towers do not share.
    """

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


@dataclass(frozen=True, eq=False)
class Tower(LastLayerAlone):
    """One side of a fitted embedder, as it embeds, and as a search encodes items or queries.

    Parameters
    ----------
    side : int
        Number of the side: 0 for images, 1 for texts.
    encoder : nn.Module or function
        Encoder of this side.
    fitted : FittedHeads
        Heads and posteriors of both sides.
    """

    spherical = False
    pairs = IndependentPairs()
    predictive = None

    side: int
    encoder: Encoder
    fitted: FittedHeads

    @property
    def head(self) -> GaussianHead:
        """Head of this side."""
        return self.fitted.heads.both[self.side]

    @property
    def device(self) -> torch.device:
        """Device of the head."""
        return self.head.mean.weight.device

    @property
    def posterior(self) -> TowerPosterior | None:
        """Posterior of this side."""
        return None if self.fitted.posteriors is None else self.fitted.posteriors[self.side]

    @property
    def fitted_rows(self) -> Fingerprints | None:
        """Fingerprints of what entered the head of images in the fit; texts recur by design."""
        return None if self.side else self.fitted.fingerprints

    @property
    def rankings(self) -> tuple[str, ...]:
        """Names of the rankings: also "expected", which is CSD, if there are variances."""
        return ("mean",) if self.head.log_variance is None else ("mean", "expected")

    @cached_property
    def identity(self) -> str:
        """Digest of the side, and of the heads and spectra of both."""
        weights = self.fitted.heads.state_dict()
        spectra = [tower.posterior.spectrum for tower in self.fitted.posteriors or ()]
        return digest(f"{SIDES[self.side]} {' '.join(weights)}", [*weights.values(), *spectra])

    def embed(self, inputs: Any, *, progress: bool) -> Embedding:
        """Return embeddings of all inputs."""
        features = encode_all(self.encoder, inputs, SIDES[self.side], progress=progress)
        return embedding_of(features, self.head, self.posterior)

    def read(self, name: str, data: Any, labels: Any = None) -> Inputs:
        """Read items that are held in memory, as the encoder takes them."""
        return read_items(name, data, labels)

    @torch.no_grad()
    def all(
        self, inputs: Inputs, *, progress: bool, rows: list[Fingerprints] | None = None
    ) -> tuple[Encoded, list[Any]]:
        """Encode all inputs; never labels. ``rows`` gets fingerprints.

        Raises
        ------
        InputError, NonFiniteError
            For no inputs, features of another size than in the fit, NaN and infinity.
        """
        parts = []
        for features in encoded_blocks(self.encoder, inputs, progress=progress):
            embedding = embedding_of(features, self.head, self.posterior)
            if rows is not None:
                rows.append(row_fingerprints(self.head(features.to(embedding.mean)).inputs))
            trace = embedding.uncertainty
            epistemic = trace if self.posterior is None else embedding.weight_variance.to(trace)
            parts.append(Encoded(embedding.mean, trace, epistemic, embedding.variance))
        return Encoded.concatenate(parts), []
