"""The Laplace posterior over the head: ``q(theta) = N(theta_map, T (n_eff H + tau W)^-1)``.

W is the identity, or diagonal with one number a layer. H comes as ``SpectralCurvature``,
``Q diag(l) Q^T`` with Q in blocks of layers, so the posterior is elementwise in Q:

    covariance S = Q diag(T / p) Q^T        p = n_eff l + tau w

The temperature T scales the covariance as a whole: it leaves every ranking by variance as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_positive
from laplace_metric.curvature._eigenbases import Eigenbasis, KroneckerEigenbasis
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.heads._affine import Affine, pad
from laplace_metric.io import POSITIVE, saved, unsaved


@dataclass(frozen=True, repr=False)
class Posterior(Shown):
    """Gaussian over the head's parameters.

    Parameters
    ----------
    mean : Tensor [P]
        Trained weights theta_map, in ``parameters_to_vector`` order.
    curvature : SpectralCurvature
        Curvature H, an average over pairs, after the positivity step.
    n_effective : float > 0
        Number of observations that the average stands for: n_eff H is the precision that the data
        contribute (the paper leaves this temperature open). A larger value means less uncertainty.
    prior_precision : float > 0
        Precision tau of the isotropic Gaussian prior. A larger value means less uncertainty in the
        directions that the data do not determine.
    temperature : float > 0
        Factor T of the covariance. Default: 1, Laplace's approximation itself; below 1, draws are
        nearer to the trained weights.
    prior_weights : Tensor [P] float64, > 0, or None
        Prior precisions w of the parameters, in units of tau, one number a layer. None, the
        default: the prior is isotropic.

    Examples
    --------
    >>> from laplace_metric.curvature._structures import DiagCurvature
    >>> curvature = DiagCurvature(torch.tensor([1.0, 0.0])).decompose()
    >>> Posterior(torch.zeros(2), curvature, n_effective=3, prior_precision=1).variance
    tensor([0.2500, 1.0000])
    """

    mean: Tensor = unsaved()
    curvature: SpectralCurvature = unsaved()
    n_effective: float = saved(0)
    prior_precision: float = saved(0)
    temperature: float = saved(0, default=1.0)
    prior_weights: Float[Tensor, " P"] | None = saved(POSITIVE, default=None)

    def __post_init__(self) -> None:
        for name in ("prior_precision", "n_effective", "temperature"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    def _sentence(self) -> str:
        return (
            f"a Gaussian over {len(self.mean):,} weights, of which the data determine "
            f"{self.n_effective_parameters:,.1f}."
        )

    def _shown_rows(self) -> Rows:
        shown = {
            "mean": self.mean,
            "structure": type(self.curvature.basis).__name__.removesuffix("Eigenbasis"),
            "prior_precision": self.prior_precision,
            "prior_weights": self.prior_weights,
            "n_effective": self.n_effective,
            "temperature": self.temperature,
            "negative curvature": f"{self.curvature.negative_fraction:.1%}",
        }
        return in_rows(shown.items())

    @cached_property
    def basis(self) -> Eigenbasis:
        """Q, the eigenvectors of the covariance, in the dtype of the weights."""
        return self.curvature.basis.to(self.mean)

    def prior(self, prior_precision: float | None = None) -> float | Float[Tensor, " P"]:
        """Return the prior precision of each eigenvector, tau w; one number where w is 1.

        Parameters
        ----------
        prior_precision : float > 0 or None
            Prior precision tau. None, the default: that of this posterior.
        """
        tau = self.prior_precision if prior_precision is None else prior_precision
        return tau if self.prior_weights is None else tau * self.prior_weights

    @cached_property
    def spectrum(self) -> Float[Tensor, " P"]:
        """Eigenvalues ``T / (n_eff l + tau w)`` of the covariance [P], in the weights' dtype."""
        precision = self.curvature.precision(self.n_effective, self.prior())
        return (self.temperature / precision).to(self.mean.dtype)

    @cached_property
    @full_precision()
    def variance(self) -> Float[Tensor, " P"]:
        """Diagonal of the covariance [P]."""
        return self.basis.diagonal(self.spectrum)

    @cached_property
    @full_precision()
    def rotated(self) -> tuple[Tensor, Affine, Tensor] | None:
        """One linear layer's ``C = Q_S diag(sum_a x_a^2 T / p) Q_S^T``, with ``x = Q_A^T a``.

        Q_S [Z, Z], h -> x and T / p [A, Z], both padded; None of any other structure.
        """
        if not isinstance(self.basis, KroneckerEigenbasis) or len(self.basis.blocks) > 1:
            return None
        (block,) = self.basis.blocks
        to_basis = Affine.of(block.right, block.layout.n_features, padded=True)
        return block.left, to_basis, pad(block.fold(self.spectrum)).mT

    @property
    def n_effective_parameters(self) -> float:
        """``sum n_eff l / (n_eff l + tau w)`` in [0, P]: directions that the data determine.

        (MacKay 1992, eq 2.22.)
        """
        gained = self.n_effective * self.curvature.eigenvalues
        return float((gained / (gained + self.prior())).sum())

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Posterior:
        """Return this posterior with another prior precision, and n_effective if given.

        Parameters
        ----------
        prior_precision : float > 0
            New prior precision tau.
        n_effective : float > 0 or None
            New number of observations that the curvature stands for. None, the default: as before.
        """
        n = self.n_effective if n_effective is None else n_effective
        return replace(self, prior_precision=prior_precision, n_effective=n)

    def with_temperature(self, temperature: float) -> Posterior:
        """Return this posterior with another temperature T > 0."""
        return replace(self, temperature=temperature)

    @full_precision()
    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n P"]:
        """Draw ``n`` parameter vectors, [n, P].

        Parameters
        ----------
        n : int
            Number of draws, at least 1.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """
        shape, source = (check_count("n", n), len(self.mean)), as_generator(seed)
        kind = self.mean.dtype, self.mean.device
        noise = torch.randn(shape, generator=source, dtype=kind[0], device=kind[1])
        return self.basis.from_eigenbasis(noise.mul_(self.spectrum.sqrt())).add(self.mean)

    def log_prior_and_determinant(self, prior_precision: float) -> float:
        """Compute the part of the log marginal likelihood that depends on the prior precision tau.

        ``1/2 (sum log(tau w) - sum tau w theta_map^2 - log det(n_eff H + tau W))``

        (Laplace's approximation of the evidence; the data term does not depend on tau.)
        """
        prior = self.prior(prior_precision)
        log_det = self.curvature.precision(self.n_effective, prior).log().sum()
        each = torch.as_tensor(prior, dtype=log_det.dtype, device=log_det.device)
        each, squares = each.expand(len(self.mean)), self.mean.to(log_det).square()
        return 0.5 * float(each.log().sum() - (each * squares).sum() - log_det)
