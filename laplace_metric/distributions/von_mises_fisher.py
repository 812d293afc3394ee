"""The von Mises-Fisher distribution on the unit sphere, for any dimension and concentration.

    density  C_D(k) exp(k mu.x) = exp(log C_D(k) + k - k |x - mu|^2 / 2)      |x| = |mu| = 1

The second form keeps its digits at large k, where log C_D and k mu.x are large and opposite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.distributions.location_concentration import (
    LocationConcentration,
    squared_chord,
)
from laplace_metric.distributions.tangent import at_angle
from laplace_metric.distributions.vmf_cosine import Angle, sample_angle
from laplace_metric.distributions.vmf_gradient import differentiable_angle
from laplace_metric.distributions.vmf_normalizer import (
    log_vmf_peak,
    mean_resultant_length,
    mean_resultant_slope,
)


class VonMisesFisher(LocationConcentration):
    """von Mises-Fisher with mean direction ``loc`` and concentration k; uniform at k = 0.

    Parameters
    ----------
    loc : Tensor [..., D] of unit length
        mu; D at least 2.
    concentration : Tensor [...] in [0, inf)
        k, broadcast with loc's batch.
    validate_args : bool, optional
        Whether to check both, and the values given to ``log_prob``, as in torch.distributions.

    Raises
    ------
    InputError (a ValueError) for a loc that is not floating [..., D] with D >= 2; DtypeError for a
    concentration of another dtype; ValueError by ``validate_args``.

    References
    ----------
    Mardia & Jupp (2000), section 9.3; Wood (1994) for the draws.

    Examples
    --------
    >>> p = VonMisesFisher(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([2.0]))
    >>> p.rsample((5,)).shape, p.mean, p.entropy()
    (torch.Size([5, 1, 3]), tensor([[0.5373, 0.0000, 0.0000]]), tensor([2.0516]))
    """

    @property
    def resultant(self) -> Tensor:
        """``A_D(k)`` [...], the length of the mean."""
        return mean_resultant_length(self.concentration, self.dimension)

    @property
    def mean(self) -> Tensor:
        """``A mu`` [..., D], inside the ball."""
        return self.resultant[..., None] * self.loc

    @property
    def mode(self) -> Tensor:
        """mu [..., D]."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Of each coordinate [..., D]: ``T + (A' - T) mu^2``, ``T = (1 - A^2 - A')/(D - 1)``."""
        along, across = self._variances()
        return across + (along - across) * self.loc.square()

    @property
    def covariance_matrix(self) -> Tensor:
        """``T I + (A' - T) mu mu^T`` [..., D, D]."""
        along, across = self._variances()
        eye = torch.eye(self.dimension, dtype=self.loc.dtype, device=self.loc.device)
        outer = self.loc[..., :, None] * self.loc[..., None, :]
        return across[..., None] * eye + (along - across)[..., None] * outer

    def _variances(self) -> tuple[Tensor, Tensor]:
        """A' along mu and ``T = A/k`` across [..., 1] (1/D at k = 0)."""
        k = self.concentration
        along = mean_resultant_slope(k, self.dimension)
        safe = torch.where(k > 1e-4, k, torch.ones_like(k))  # A/k = 1/D up to k^2 / D^2
        across = torch.where(k > 1e-4, self.resultant / safe, 1 / self.dimension)
        return along[..., None], across[..., None]

    def log_prob(self, value: Tensor) -> Tensor:
        """[...] for unit vectors [..., D], by surface measure."""
        if self._validate_args:
            self._validate_sample(value)
        peak = log_vmf_peak(self.concentration, self.dimension)
        return peak - self.concentration * squared_chord(value, self.loc) / 2

    def entropy(self) -> Tensor:
        """``-(log C + k) + k (1 - A)`` [...]."""
        k = self.concentration.double()
        spread = k * (1 - mean_resultant_length(k, self.dimension))
        return (spread - log_vmf_peak(k, self.dimension)).to(self.loc.dtype)

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Exact."""
        k = self.concentration.expand(*sample_shape, *self.batch_shape)
        angle = Angle(*(x.to(k.dtype) for x in sample_angle(k, self.dimension, generator)))
        if k.requires_grad and torch.is_grad_enabled():
            angle = differentiable_angle(angle, k, self.dimension)
        return at_angle(self.loc, angle, generator)
