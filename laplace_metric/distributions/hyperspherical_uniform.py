"""The uniform distribution on the unit sphere."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from laplace_metric.distributions.constraints import unit_vector
from laplace_metric.errors import InputError


def log_sphere_area(dimension: int) -> float:
    """``log(2 pi^(D/2) / Gamma(D/2))``, of the unit sphere in R^D.

    Examples
    --------
    >>> round(log_sphere_area(3), 4)  # log 4 pi
    2.531
    """
    half = dimension / 2
    return math.log(2) + half * math.log(math.pi) - math.lgamma(half)


class HypersphericalUniform(Distribution):
    """Uniform on the unit sphere in R^D; a von Mises-Fisher of concentration 0.

    Parameters
    ----------
    dimension : int >= 2
    batch_shape : tuple of int
    dtype, device : of the draws

    Raises
    ------
    InputError for a dimension below 2.

    Examples
    --------
    >>> HypersphericalUniform(3).entropy()
    tensor(2.5310)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = unit_vector
    has_rsample = True

    def __init__(
        self,
        dimension: int,
        batch_shape: Any = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(dimension, int) or dimension < 2:
            raise InputError(f"dimension must be an integer of at least 2, not {dimension!r}.")
        self.dimension, self._zero = dimension, torch.zeros((), dtype=dtype, device=device)
        super().__init__(torch.Size(batch_shape), torch.Size([dimension]), validate_args)

    @property
    def mean(self) -> Tensor:
        """0 [..., D]."""
        return self._zero.expand(*self.batch_shape, *self.event_shape)

    @property
    def variance(self) -> Tensor:
        """1/D of each coordinate [..., D]."""
        return self.mean + 1 / self.dimension

    def log_prob(self, value: Tensor) -> Tensor:
        """[...] of unit vectors [..., D], by surface measure."""
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        return (self._zero - log_sphere_area(self.dimension)).expand(shape)

    def entropy(self) -> Tensor:
        """``log area`` [...]."""
        return (self._zero + log_sphere_area(self.dimension)).expand(self.batch_shape)

    def rsample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008  as in torch
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Normalised standard normal vectors [*sample_shape, ..., D]."""
        like, shape = self._zero, self._extended_shape(torch.Size(sample_shape))
        z = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        return nn.functional.normalize(z, dim=-1, eps=torch.finfo(like.dtype).tiny)

    sample = rsample

    def expand(self, batch_shape: Any, _instance: Any = None) -> HypersphericalUniform:
        """The same for another batch."""
        like = self._zero
        return HypersphericalUniform(self.dimension, batch_shape, like.dtype, like.device)
