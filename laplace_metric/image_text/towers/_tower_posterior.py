"""The Laplace posterior over the projection of a tower: how little the pairs determine the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.distributions import ProjectedNormal
from laplace_metric.embedding import FitSetParts
from laplace_metric.errors import NotFittedError
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.image_text._head import GaussianHead, HeadOutput
from laplace_metric.image_text.objectives._objectives import TwoHeads
from laplace_metric.image_text.objectives._sigmoid_curvature import TowerPairs, tower_curvature
from laplace_metric.image_text.objectives._softmax_curvature import SoftmaxPairs
from laplace_metric.laplace import Posterior
from laplace_metric.laplace._predictive_covariance import covariance


@dataclass(frozen=True)
class TowerPosterior:
    """``N(W, (n_eff H + tau I)^-1)`` over the projection of one tower.

    Parameters
    ----------
    head : LinearJacobian
        Copy of the projection that the posterior was fitted to.
    posterior : Posterior
        Gaussian over the weights of this projection.
    log_variance : LinearJacobian or None
        Copy of the projection ``u -> log v``; None for heads without variances.
    """

    of_weights: ClassVar[bool] = True
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
        """Return how far the weights leave the direction open [B], ``E|mu - mean|^2``, as far.

        ``mu`` is a drawn direction and ``mean`` that of the mean embedding, in squared units of the
        unit sphere. ``tr Cov[mu]`` is smaller where draws spread, since the mean of directions lies
        inside the sphere.
        """
        far = self.distribution(features).variance.sum(-1)
        return FitSetParts(None, far, None, far)

    @full_precision()
    def ambiguity(self, features: Tensor) -> Float[Tensor, " B"]:
        """Return ``tr S = sum_d exp(U u + c)_d`` [B], the variance that the head has learnt.

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
