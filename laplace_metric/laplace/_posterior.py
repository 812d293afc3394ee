"""The Laplace posterior over the head: ``q(theta) = N(theta_map, (n_eff H + tau I)^-1)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.validation import check_positive
from laplace_metric.curvature.structures import Eigenbasis, SpectralCurvature


@dataclass(frozen=True)
class Posterior:
    """A Gaussian over the head's parameters.

    Parameters
    ----------
    mean : Tensor [P]
        theta_map: the trained weights, in ``parameters_to_vector`` order.
    curvature : SpectralCurvature
        H, an average over pairs.
    n_effective : float
        n_eff turns the average into a sum over data (the paper leaves this temperature open).
    prior_precision : float
        tau of the isotropic Gaussian prior.

    Examples
    --------
    >>> from laplace_metric.curvature.structures import DiagCurvature
    >>> curvature = DiagCurvature(torch.tensor([1.0, 0.0])).decompose()
    >>> Posterior(torch.zeros(2), curvature, n_effective=3, prior_precision=1).variance
    tensor([0.2500, 1.0000])
    """

    mean: Tensor
    curvature: SpectralCurvature
    n_effective: float
    prior_precision: float

    def __post_init__(self) -> None:
        check_positive("prior_precision", self.prior_precision)
        check_positive("n_effective", self.n_effective)

    @cached_property
    def basis(self) -> Eigenbasis:
        """Q, the eigenvectors of the covariance, in the dtype of the weights."""
        return self.curvature.basis.to(self.mean)

    @cached_property
    def spectrum(self) -> Tensor:
        """Eigenvalues ``1 / (n_eff l + tau)`` of the covariance [P], in the weights' dtype."""
        precision = self.curvature.precision(self.n_effective, self.prior_precision)
        return precision.reciprocal().to(self.mean.dtype)

    @cached_property
    @full_precision()
    def variance(self) -> Tensor:
        """Diagonal of the covariance [P]."""
        return self.basis.diagonal(self.spectrum)

    @property
    def n_effective_parameters(self) -> float:
        """``sum n_eff l / (n_eff l + tau)`` in [0, P]: directions that the data determine.

        (MacKay 1992, eq 2.22.)
        """
        gained = self.n_effective * self.curvature.eigenvalues
        return float((gained / (gained + self.prior_precision)).sum())

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Posterior:
        """The same curvature under another prior precision, and another n_effective if given."""
        n = self.n_effective if n_effective is None else n_effective
        return replace(self, prior_precision=prior_precision, n_effective=n)

    @full_precision()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` parameter vectors [n, P]."""
        noise = torch.randn(
            n, len(self.mean), generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        return self.basis.from_eigenbasis(noise.mul_(self.spectrum.sqrt())).add(self.mean)

    def log_prior_and_determinant(self, prior_precision: float) -> float:
        """The part of the log marginal likelihood that depends on the prior precision tau:

        ``P/2 log tau - tau/2 |theta_map|^2 - 1/2 log det(n_eff H + tau I)``

        (Laplace's approximation of the evidence; the data term does not depend on tau.)
        """
        p, tau = len(self.mean), prior_precision
        log_det = self.curvature.log_determinant(self.n_effective, tau)
        return 0.5 * (
            p * float(torch.tensor(tau, dtype=torch.float64).log())
            - tau * float(self.mean.double().square().sum())
            - log_det
        )
