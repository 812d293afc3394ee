"""``Fitted``: the head of a model, and the posterior over its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import UInt64

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import check_positive
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._body import BodyRecord
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._located import LocatedHead
from laplace_metric.io import POSITIVE, saved, unsaved
from laplace_metric.laplace._posterior import Posterior


@dataclass(frozen=True)
class Draws:
    """Embeddings under heads that were drawn from a posterior, on points as new to it.

    Parameters
    ----------
    spread : float >= 0
        Mean squared distance of a draw from its mean: of directions in [0, 4], where a uniform one
        has 2; of vectors as a share of their variance.
    recall : float in [0, 1]
        Share of draws whose nearest neighbour, among draws of the same head, is of their class.
    recall_of_means : float in [0, 1]
        The same share of the trained head.
    """

    spread: float = saved(0)
    recall: float = saved(0, 1)
    recall_of_means: float = saved(0, 1)

    def __str__(self) -> str:
        return (
            f"{self.spread:.2g} from the mean; recall@1 by draws {self.recall:.2f}, by means "
            f"{self.recall_of_means:.2f}"
        )


@dataclass(frozen=True, repr=False)
class Fitted(Shown):
    """Result of a fit.

    Parameters
    ----------
    head : LocatedHead
        The head in its model, which has the posterior.
    jacobian : HeadJacobian
        The head as its Jacobian backend sees it.
    loss : ContrastiveLoss
        The contrastive loss that was differentiated.
    posterior : Posterior
        Gaussian over the parameters of the head.
    n_points : int
        Number N of points that were fitted.
    structure : str
        Structure of the curvature: "diag", "kron" or "full".
    fingerprints : uint64 [N], sorted, or None
        Fingerprints of the head's inputs that were fitted. None, the default, for streams and
        beyond five million points.
    near_far : NearFar or None
        Model of the fit set that computes ``Embedding.epistemic`` and its parts. None, the default,
        where the points of the fit were not kept.
    trained_on : uint64 [M], sorted, or None
        Fingerprints of the inputs that the model was trained on (``models._trained``). None, the
        default, if this package did not train it.
    body : BodyRecord or None
        Record of the model apart from the weights of its head. None, the default: it is not
        compared.
    draws : Draws or None
        Spread and recall of heads drawn from the posterior, on points as new to it. None, the
        default, where these were not kept, or the posterior was tuned since.
    predictive_prior : float > 0 or None
        Prior precision under which predictive vectors compare inputs. None, the default: that of
        the posterior: it is a number that was given or tuned, the head is not one linear layer, or
        the file is of a version before it.
    width : float > 0 or None
        Temperature over prior precision that tuning the prior precision keeps, up to a temperature
        of 1. None, the default: those of the posterior.
    """

    head: LocatedHead = unsaved()
    jacobian: HeadJacobian = unsaved()
    loss: ContrastiveLoss = unsaved()
    posterior: Posterior = unsaved()
    n_points: int = saved()
    structure: str = unsaved()
    fingerprints: UInt64[np.ndarray, " N"] | None = None
    near_far: NearFar | None = unsaved(default=None)
    trained_on: UInt64[np.ndarray, " M"] | None = None
    body: BodyRecord | None = unsaved(default=None)
    draws: Draws | None = None
    predictive_prior: float | None = None
    width: float | None = saved(POSITIVE, default=None)

    def __post_init__(self) -> None:
        if self.predictive_prior is not None:
            check_positive("predictive_prior", self.predictive_prior)

    @property
    def spherical(self) -> bool:
        """True if embeddings are directions: arccos, or a model that l2-normalises."""
        return self.loss.geometry.spherical

    @cached_property
    def predictive_posterior(self) -> Posterior:
        """Posterior of predictive vectors: ``N(theta, T tau_p / tau (n H + tau_p I)^-1)``.

        Under the prior precision tau_p of ``predictive_prior``; at this temperature directions
        without data are as wide as in the posterior, and others wider where tau_p > tau.
        """
        posterior, prior = self.posterior, self.predictive_prior
        if prior is None:
            return posterior
        temperature = posterior.temperature * prior / posterior.prior_precision
        return replace(posterior, prior_precision=prior, temperature=temperature)

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Fitted:
        """Return the same fit under another prior precision, and n_effective if given.

        Parameters
        ----------
        prior_precision : float > 0
            New prior precision tau.
        n_effective : float > 0 or None
            New number of observations that the curvature stands for. None, the default: as before.
        """
        tuned = self.posterior.with_precision(prior_precision, n_effective)
        return replace(self, posterior=tuned, predictive_prior=None, draws=None)

    def with_temperature(self, temperature: float) -> Fitted:
        """Return the same fit at another temperature T > 0."""
        return replace(self, posterior=self.posterior.with_temperature(temperature), draws=None)
