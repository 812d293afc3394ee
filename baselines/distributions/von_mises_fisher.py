"""The von Mises-Fisher distribution on the unit sphere, for any dimension and concentration.

    density  C_D(k) exp(k mu.x) = exp(log C_D(k) + k - k |x - mu|^2 / 2)      |x| = |mu| = 1

The second form keeps its digits at large k, where log C_D and k mu.x are large and opposite.
``Directions`` is a batch of them with the interface of every embedding distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from baselines.distributions.angles import differentiable_angle, sample_angle
from baselines.distributions.location_concentration import (
    LocationConcentration,
    squared_chord,
)
from baselines.distributions.tangent import at_angle
from baselines.distributions.vmf_normalizer import (
    log_vmf_peak,
    mean_resultant_length,
    mean_resultant_slope,
)
from laplace_metric._utils.randomness import Seed
from laplace_metric._utils.validation import check_broadcast, check_count, check_floating
from laplace_metric.distributions._angle_quadrature import Angle
from laplace_metric.errors import InputError


class VonMisesFisher(LocationConcentration):
    """von Mises-Fisher with mean direction ``loc`` and concentration k; uniform at k = 0.

    Parameters
    ----------
    loc : Tensor [..., D] of unit length
        Mean direction mu, with D at least 2.
    concentration : Tensor [...] in [0, inf)
        Concentration k, broadcast with loc's batch.
    validate_args : bool, optional
        Check both, and the values given to ``log_prob``. None, the default: as torch.distributions
        is set.

    Raises
    ------
    InputError, DtypeError, ValueError
        As ``LocationConcentration``.

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
    def resultant(self) -> Float[Tensor, "*B"]:
        """``A_D(k)`` [...], the length of the mean."""
        return mean_resultant_length(self.concentration, self.dimension)

    @property
    def mean(self) -> Float[Tensor, "*B D"]:
        """``A mu`` [..., D], inside the ball."""
        return self.resultant[..., None] * self.loc

    @property
    def mode(self) -> Float[Tensor, "*B D"]:
        """mu [..., D]."""
        return self.loc

    @property
    def variance(self) -> Float[Tensor, "*B D"]:
        """Variance [..., D]: ``T + (A' - T) mu^2``, ``T = (1 - A^2 - A')/(D - 1)``."""
        along, across = self._variances()
        return across + (along - across) * self.loc.square()

    @property
    def covariance_matrix(self) -> Float[Tensor, "*B D D"]:
        """``T I + (A' - T) mu mu^T`` [..., D, D]."""
        along, across = self._variances()
        eye = torch.eye(self.dimension, dtype=self.loc.dtype, device=self.loc.device)
        outer = self.loc[..., :, None] * self.loc[..., None, :]  # [..., D, D]
        return across[..., None] * eye + (along - across)[..., None] * outer

    def _variances(self) -> tuple[Tensor, Tensor]:
        """Return A' along mu and ``T = A/k`` across [..., 1] (1/D at k = 0)."""
        k = self.concentration
        along = mean_resultant_slope(k, self.dimension)
        safe = torch.where(k > 1e-4, k, torch.ones_like(k))  # A/k = 1/D up to k^2 / D^2
        across = torch.where(k > 1e-4, self.resultant / safe, 1 / self.dimension)
        return along[..., None], across[..., None]

    def _log_density(self, value: Tensor) -> Tensor:
        peak = log_vmf_peak(self.concentration, self.dimension)
        return peak - self.concentration * squared_chord(value, self.loc) / 2

    def entropy(self) -> Float[Tensor, "*B"]:
        """Return ``-(log C + k) + k (1 - A)`` [...]."""
        k = self.concentration.double()
        spread = k * (1 - mean_resultant_length(k, self.dimension))
        return (spread - log_vmf_peak(k, self.dimension)).to(self.loc.dtype)

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Draw exactly."""
        k = self.concentration.expand(*sample_shape, *self.batch_shape)
        angle = Angle(*(x.to(k.dtype) for x in sample_angle(k, self.dimension, generator)))
        if k.requires_grad and torch.is_grad_enabled():
            angle = differentiable_angle(angle, k, self.dimension)
        return at_angle(self.loc, angle, generator)


@dataclass(frozen=True)
class Directions:
    """A mean direction and a concentration for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, D] of unit length
        Mean direction of each input.
    concentration : Tensor [B] in [0, inf)
        Concentration k of each input.

    Raises
    ------
    InputError
        For anything but floating tensors of these shapes.

    Examples
    --------
    >>> d = Directions(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([2.0]))
    >>> d.variance.sum(-1)  # 2 (1 - A)
    tensor([0.9254])
    """

    loc: Tensor
    concentration: Tensor

    def __post_init__(self) -> None:
        check_floating("loc", self.loc, "[B, D]")
        check_floating("concentration", self.concentration, "[B]")
        if len(self.loc) != len(self.concentration):
            raise InputError(
                f"loc has {len(self.loc)} rows, concentration {len(self.concentration)}."
            )

    @property
    def distribution(self) -> VonMisesFisher:
        """Distribution as torch has it, of batch shape [B]."""
        return VonMisesFisher(self.loc, self.concentration, validate_args=False)

    @property
    def mean(self) -> Float[Tensor, "B D"]:
        """The mean directions [B, D], of unit length."""
        return self.loc

    @property
    def variance(self) -> Float[Tensor, "B D"]:
        """Mean squared deviation from ``mean`` [B, D]; its sum is ``E|z - mu|^2 = 2 (1 - A)``."""
        p = self.distribution
        return p.variance + ((1 - p.resultant)[..., None] * self.loc).square()

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B D"]:
        """Return exact draws [n, B, D] of unit length."""
        return self.distribution.sample((check_count("n", n, 0),), seed)

    def select(self, index: Tensor | slice) -> Directions:
        """Return distributions at ``index`` of the batch."""
        return Directions(self.loc[index], self.concentration[index])

    @classmethod
    def concatenate(cls, parts: Sequence[Directions]) -> Directions:
        """Return one batch out of several."""
        loc, k = (torch.cat([getattr(p, x) for p in parts]) for x in ("loc", "concentration"))
        return cls(loc, k)


def unnormalized_vmf_score(
    loc: Float[Tensor, "... D"], concentration: Float[Tensor, " ..."], x: Float[Tensor, "... D"]
) -> Float[Tensor, " ..."]:
    """Return ``k mu.x`` [...] for loc and x [..., D]: the log density less its constant.

    The score of the explicit-concentration method. It ranks points as the density does for equal
    concentrations only. That a higher density implies a higher score (the method's Proposition 1)
    is false, as this pair of points shows.

    Raises
    ------
    InputError
        For anything but floating tensors of shapes that fit.

    Examples
    --------
    >>> import torch
    >>> from baselines.distributions import VonMisesFisher
    >>> mu, k = torch.tensor([[1.0, 0.0, 0.0]] * 2), torch.tensor([1.0, 10.0])
    >>> x = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
    >>> VonMisesFisher(mu, k).log_prob(x)  # the first is the more likely ...
    tensor([-1.6925, -3.5353])
    >>> unnormalized_vmf_score(mu, k, x)  # ... and has the lower score
    tensor([1., 6.])
    """
    for name, value in (("loc", loc), ("concentration", concentration), ("x", x)):
        check_floating(name, value)
    rows = check_broadcast(loc=loc.shape, x=x.shape)[:-1]
    check_broadcast(rows=rows, concentration=concentration.shape)
    return concentration * (loc * x).sum(-1)
