"""A fit, the network that it belongs to, and the distributions that both give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from laplace_metric._utils.display import Shown
from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.distributions import Covariance, Gaussian, PendingCovariance, ProjectedNormal
from laplace_metric.embedding import Embedding
from laplace_metric.laplace._near_far import NearFar
from laplace_metric.laplace._posterior import Posterior, covariance
from laplace_metric.models import Inputs, device_of, labels_of, to_device
from laplace_metric.models.features import Fingerprints
from laplace_metric.models.heads import HeadActivations, LocatedHead, capture, check_rows
from laplace_metric.models.jacobians import HeadJacobian


@dataclass(frozen=True, repr=False)
class Fitted(Shown):
    """What a fit learns, once.

    Parameters
    ----------
    head : LocatedHead
    jacobian : HeadJacobian
        The head as its Jacobian backend sees it.
    loss : ContrastiveLoss
        What was differentiated.
    posterior : Posterior
    n_points : int
        N.
    structure : str
        "diag", "kron" or "full".
    fingerprints : uint64 [N], sorted, or None
        Of the head's inputs that were fitted; None for streams and beyond five million points.
    near_far : NearFar or None
        What ``Embedding.epistemic`` needs of the fit set; None where its points were not kept.
    """

    head: LocatedHead
    jacobian: HeadJacobian
    loss: ContrastiveLoss
    posterior: Posterior
    n_points: int
    structure: str
    fingerprints: Fingerprints | None = None
    near_far: NearFar | None = None

    @property
    def spherical(self) -> bool:
        """Whether embeddings are directions: arccos, or a model that l2-normalises."""
        return self.loss.geometry.spherical

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Fitted:
        """The same fit under another prior precision (and n_effective)."""
        return replace(self, posterior=self.posterior.with_precision(prior_precision, n_effective))


def seen_at_head(model: nn.Module, fitted: Fitted, inputs: Inputs) -> HeadActivations:
    """Run the model once and return what enters its head [B, D] and what leaves it [B, Z]."""
    if isinstance(inputs, Mapping):
        inputs = labels_of(inputs)[0]
    seen = capture(model, fitted.head, to_device(inputs, device_of(model)))
    h, z = at_least_float32(seen.features), at_least_float32(seen.raw)
    return HeadActivations(h, z, seen.output)


def predicted_embedding(h: Tensor, raw: Tensor, fitted: Fitted) -> Embedding:
    """Of h and z, which nobody else writes to: all but the mean is computed when it is read."""
    kind, near_far = ProjectedNormal if fitted.spherical else Gaussian, fitted.near_far
    check_rows(raw, spherical=fitted.spherical)
    spread = PendingCovariance(raw.shape, partial(_covariance, h, raw, fitted))
    inputs = None if near_far is None else h
    return Embedding(kind(raw, spread), head_inputs=inputs, near_far=near_far)


@full_precision()
def _covariance(h: Tensor, raw: Tensor, fitted: Fitted) -> Covariance:
    """Of raw embeddings.

    Raises
    ------
    NonFiniteError
        If a variance overflows.
    """
    spread = covariance(fitted.jacobian, fitted.posterior, h)
    trace = spread.trace()
    most = trace / raw.square().sum(-1) if fitted.spherical else trace  # of any variance
    check_rows(raw, most, spherical=fitted.spherical)
    return spread
