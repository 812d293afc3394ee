"""Two fitted towers: posterior, embeddings, and what an ``Index`` needs of them.

A Laplace posterior over each projection gives both uncertainties of what goes through it. Texts
find images, and images find texts.

Of independent Gaussians with diagonal covariances, ``x ~ N(mu_x, diag(v_x))`` and y likewise, with
``d = mu_x - mu_y`` and ``V = v_x + v_y``, ``x - y ~ N(d, diag(V))`` and

    E |x - y|^2   = sum_k d_k^2 + V_k            = CSD (Chun 2024, eq 1)
    Var |x - y|^2 = sum_k 2 V_k^2 + 4 d_k^2 V_k

as for any quadratic form of a normal (Mathai & Provost 1992, section 3.2b). The spread is of what
both inputs may mean, not of the weights, which two towers do not share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.randomness import full_precision
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.distributions import Gaussian, ProjectedNormal
from laplace_metric.embedding import Embedding, FitSetParts
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.heads._jacobian import LinearJacobian
from laplace_metric.image_text._curvature import SoftmaxPairs, TowerPairs, tower_curvature
from laplace_metric.image_text._gaussians import GaussianHead, HeadOutput, InclusionCalibration
from laplace_metric.image_text._objectives import TwoHeads
from laplace_metric.image_text._pairs import BLOCK, SIDES, Encoder, encode_all, encoded_blocks
from laplace_metric.image_text._training import Spread
from laplace_metric.io import digest
from laplace_metric.laplace import Distance, Posterior
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.models._calling import Inputs
from laplace_metric.models._store import Fingerprints, row_fingerprints, sorted_fingerprints
from laplace_metric.search._columns import Encoded

PAIR_BYTES = 2**24
"""Of the variances of pairs that are held at once."""


@dataclass(frozen=True)
class TowerPosterior:
    """``N(W, (n_eff H + tau I)^-1)`` over the projection of one tower, as an epistemic number.

    Parameters
    ----------
    head : LinearJacobian
        The projection that the posterior was fitted to, a copy.
    posterior : Posterior
    log_variance : LinearJacobian or None
        The projection ``u -> log v``, a copy; None for heads without variances.
    """

    head: LinearJacobian
    posterior: Posterior
    log_variance: LinearJacobian | None = None

    @classmethod
    def around(
        cls,
        head: GaussianHead,
        curvature: SpectralCurvature,
        n_effective: float,
        prior_precision: float,
    ) -> TowerPosterior:
        """Return the posterior of this curvature, around the present weights of the head."""
        jacobian = _frozen(head.mean)
        posterior = Posterior(jacobian.parameters, curvature, n_effective, prior_precision)
        log_variance = None if head.log_variance is None else _frozen(head.log_variance)
        return cls(jacobian, posterior, log_variance)

    @full_precision()
    def parts(self, features: Tensor) -> FitSetParts:
        """Return how far the weights leave the direction open [B], ``tr Cov[mu]``, as far.

        In squared units of the unit sphere, to first order.
        """
        far = self.distribution(features).variance.sum(-1)
        return FitSetParts(None, far, None, far)

    @full_precision()
    def ambiguity(self, features: Tensor) -> Float[Tensor, " B"]:
        """``tr S = sum_d exp(U u + c)_d`` [B]: the variance that the head has learnt.

        The features are as ``GaussianHead.entering`` has them: those of the variance come last.

        Raises
        ------
        NotFittedError
            For heads without variances.
        """
        if self.log_variance is None:
            raise NotFittedError(
                "ambiguity of images and texts is the variance that their heads learn, and this "
                "objective learns none: train with objective='prolip' or 'pcme++'."
            )
        u = features[:, -self.log_variance.weight.shape[1] :].to(self.head.dtype)
        return self.log_variance.forward(u).exp().sum(-1)

    def distribution(self, features: Float[Tensor, "B H"]) -> ProjectedNormal:
        """Return the distribution of the unit mean, under the posterior of the weights.

        The features are as ``GaussianHead.entering`` has them: those of the mean come first.
        """
        h = features[:, : self.head.weight.shape[1]].to(self.head.dtype)
        spread = covariance(self.head, self.posterior, h)
        return ProjectedNormal(self.head.forward(h), spread)


def _frozen(layer: nn.Linear) -> LinearJacobian:
    head = LinearJacobian.of(layer)
    return LinearJacobian(head.weight.clone(), None if head.bias is None else head.bias.clone())


@torch.no_grad()
def fit_posteriors(
    heads: TwoHeads,
    features: tuple[Tensor, Tensor],
    n_effective: float | None,
    prior_precision: float,
) -> tuple[TowerPosterior, TowerPosterior] | None:
    """Fit both towers from all N M pairs; None for an objective of neither sigmoid nor softmax."""
    objective, scale = heads.objective, heads.objective.scale()
    if scale is None:
        return None
    n, m = map(len, features)
    n_terms = n + m if objective.softmax else n * m
    kind = SoftmaxPairs if objective.softmax else TowerPairs
    image, text = (head(x) for head, x in zip(heads.both, features, strict=True))

    def fitted(head: GaussianHead, mine: HeadOutput, other: HeadOutput) -> TowerPosterior:
        layout = _frozen(head.mean).layout
        own = layout.augment(mine.inputs), mine.raw, mine.trace
        h, raw, trace, mu, traces = (x.double() for x in (*own, other.mu, other.trace))
        curvature = tower_curvature(kind(h, raw, trace, mu, traces, *scale), layout)
        return TowerPosterior.around(head, curvature, n_effective or n_terms, prior_precision)

    return fitted(heads.image, image, text), fitted(heads.text, text, image)


@torch.no_grad()
@full_precision()
def embedding_of(
    features: Float[Tensor, "B ..."], head: GaussianHead, posterior: TowerPosterior | None
) -> Embedding:
    """``N(mu, S)`` of features, with what says how little the pairs determine mu.

    Raises
    ------
    InputError
        For features of another size than those of the fit.
    """
    if features.shape[1:] != head.shape:
        sizes = [" x ".join(map(str, shape)) for shape in (features.shape[1:], head.shape)]
        raise InputError(f"features have size {sizes[0]}, in the fit it was {sizes[1]}.")
    blocks = features.to(head.mean.weight).split(BLOCK)
    parts = zip(*(head(block) for block in blocks), strict=True)
    out = HeadOutput(*(torch.cat(part) for part in parts))
    gaussian = Gaussian(out.mu, out.log_v.exp())
    if posterior is None:
        return Embedding(gaussian)
    entering = torch.cat([head.entering(block) for block in blocks])
    return Embedding(gaussian, head_inputs=entering, near_far=posterior)


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


@dataclass
class FittedHeads:
    """Result of ``fit``.

    Parameters
    ----------
    heads : TwoHeads
    posteriors : of the image and of the text tower, or None
    losses : list of float
        Mean of each epoch.
    spreads : dict
        Of "images" and "texts", one a epoch.
    inclusion : InclusionCalibration or None
    fingerprints : uint64 [N] or None
        Of the images, sorted; None in files that have none.
    """

    heads: TwoHeads
    posteriors: tuple[TowerPosterior, TowerPosterior] | None = None
    losses: list[float] = field(default_factory=list)
    spreads: dict[str, list[Spread]] = field(default_factory=dict)
    inclusion: InclusionCalibration | None = None
    fingerprints: Fingerprints | None = None

    def with_posteriors(
        self, features: tuple[Tensor, Tensor], n_effective: float | None, prior_precision: float
    ) -> FittedHeads:
        """Return these heads with posteriors and fingerprints from the features of all inputs."""
        posteriors = fit_posteriors(self.heads, features, n_effective, prior_precision)
        with torch.no_grad():
            blocks = features[0].split(BLOCK)
            rows = [row_fingerprints(self.heads.image(block).inputs) for block in blocks]
        return replace(self, posteriors=posteriors, fingerprints=sorted_fingerprints(rows))


@dataclass(frozen=True, eq=False)
class Tower:
    """One side of a fitted embedder, as it embeds, and as a search encodes items or queries.

    Parameters
    ----------
    side : int
        0 of images, 1 of texts.
    encoder : nn.Module or function
    fitted : FittedHeads
    """

    spherical = False
    pairs = IndependentPairs()

    side: int
    encoder: Encoder
    fitted: FittedHeads

    @property
    def head(self) -> GaussianHead:
        """Head of this side."""
        return self.fitted.heads.both[self.side]

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
        """Also "expected", which is CSD, where there are variances."""
        return ("mean",) if self.head.log_variance is None else ("mean", "expected")

    @cached_property
    def identity(self) -> str:
        """Digest of the side, and of the heads and spectra of both."""
        weights = self.fitted.heads.state_dict()
        spectra = [tower.posterior.spectrum for tower in self.fitted.posteriors or ()]
        return digest(f"{SIDES[self.side]} {' '.join(weights)}", [*weights.values(), *spectra])

    def embed(self, inputs: Inputs, *, progress: bool) -> Embedding:
        """Embeddings of all inputs."""
        features = encode_all(self.encoder, inputs, SIDES[self.side], progress=progress)
        return embedding_of(features, self.head, self.posterior)

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
