"""A Laplace posterior over one projection, and both uncertainties of what goes through it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature._structures import SpectralCurvature
from laplace_metric.distributions import Gaussian, ProjectedNormal
from laplace_metric.embedding import Embedding, FitSetParts
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.heads._jacobian import LinearJacobian
from laplace_metric.image_text._curvature import SoftmaxPairs, TowerPairs, tower_curvature
from laplace_metric.image_text._heads import GaussianHead, HeadOutput
from laplace_metric.image_text._pairs import BLOCK
from laplace_metric.laplace import Posterior
from laplace_metric.laplace._posterior import covariance


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


def fit_tower(
    head: GaussianHead,
    mine: HeadOutput,
    other: HeadOutput,
    scale: tuple[float, float] | float,
    n_effective: float,
    prior_precision: float,
) -> TowerPosterior:
    """The posterior of ``head`` from the outputs of all inputs of its side and of the other.

    ``scale`` is (a, b) of a sigmoid, or a of a softmax.
    """
    jacobian = _frozen(head.mean)
    h = jacobian.layout.augment(mine.inputs)
    kind, (a, b) = (TowerPairs, scale) if isinstance(scale, tuple) else (SoftmaxPairs, (scale, 0.0))
    pairs = kind(h, mine.raw, mine.trace, other.mu, other.trace, a, b)
    curvature = tower_curvature(pairs, jacobian.layout)
    return around(head, curvature, n_effective, prior_precision)


def around(
    head: GaussianHead, curvature: SpectralCurvature, n_effective: float, prior_precision: float
) -> TowerPosterior:
    """A curvature with the weights that the projection has now."""
    jacobian = _frozen(head.mean)
    posterior = Posterior(jacobian.parameters, curvature, n_effective, prior_precision)
    log_variance = None if head.log_variance is None else _frozen(head.log_variance)
    return TowerPosterior(jacobian, posterior, log_variance)


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


def _frozen(layer: nn.Linear) -> LinearJacobian:
    head = LinearJacobian.of(layer)
    return LinearJacobian(head.weight.clone(), None if head.bias is None else head.bias.clone())
