"""Distributions on the sphere with a direction ``loc`` [..., D] and a concentration [...].

What their parameters and values must satisfy, for ``torch.distributions``, and what they share.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import (
    as_shape,
    as_tensor,
    check_broadcast,
    check_dense,
    check_floating,
)
from laplace_metric.errors import DtypeError, InputError


class UnitVector(constraints.Constraint):
    """Vectors along the last axis of length 1, up to the rounding of their dtype.

    Examples
    --------
    >>> UnitVector().check(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([ True, False])
    """

    event_dim = 1

    def check(self, value: Float[Tensor, "*B D"]) -> Bool[Tensor, "*B"]:
        """Return [...], true for vectors [..., D] of unit length."""
        tolerance = 1e3 * torch.finfo(value.dtype).eps
        return (value.norm(dim=-1) - 1).abs() <= tolerance


class FiniteNonNegative(constraints.Constraint):
    """Numbers in [0, inf).

    Examples
    --------
    >>> FiniteNonNegative().check(torch.tensor([0.0, 1.0, -1.0, torch.inf, torch.nan]))
    tensor([ True,  True, False, False, False])
    """

    def check(self, value: Float[Tensor, "*B"]) -> Bool[Tensor, "*B"]:
        """Return whether each number lies in the range [...]."""
        return (value >= 0) & torch.isfinite(value)


class FinitePositive(constraints.Constraint):
    """Numbers in (0, inf).

    Examples
    --------
    >>> FinitePositive().check(torch.tensor([0.0, 1.0]))
    tensor([False,  True])
    """

    def check(self, value: Float[Tensor, "*B"]) -> Bool[Tensor, "*B"]:
        """Return whether each number lies in the range [...]."""
        return (value > 0) & torch.isfinite(value)


unit_vector = UnitVector()
finite_nonnegative = FiniteNonNegative()
finite_positive = FinitePositive()


class LocationConcentration(Distribution):
    """Broadcasting, checks and drawing; subclasses add ``_draw`` and ``_log_density``.

    Raises
    ------
    InputError
        For a loc that is not floating [..., D] with D >= 2. It is a ValueError.
    DtypeError
        For a concentration of another dtype.
    InputError
        By ``validate_args``, which is a ValueError as in torch.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": unit_vector,
        "concentration": finite_nonnegative,
    }
    support = unit_vector
    has_rsample = True

    def __init__(
        self,
        loc: Float[Tensor, "... D"],
        concentration: Float[Tensor, " ..."] | float,
        validate_args: bool | None = None,
    ) -> None:
        k = _concentration(loc, concentration)
        per_vector = self.arg_constraints["concentration"].event_dim == 0
        if not per_vector and k.shape[-1:] != loc.shape[-1:]:
            raise InputError(
                f"concentration has shape {tuple(k.shape)}: pass [..., {loc.shape[-1]}]."
            )
        shape = k.shape if per_vector else k.shape[:-1]
        batch = check_broadcast(loc=loc.shape[:-1], concentration=shape)
        self.loc = loc.expand(*batch, -1)
        self.concentration = k.expand(batch) if per_vector else k.expand(*batch, -1)
        try:
            super().__init__(batch, loc.shape[-1:], validate_args=validate_args)
        except ValueError as error:
            raise InputError(f"loc or concentration is out of its range: {error}") from error

    @property
    def dimension(self) -> int:
        """D."""
        return self.event_shape[0]

    def log_prob(self, value: Float[Tensor, "*V D"]) -> Float[Tensor, " ..."]:
        """Return log density [...] at unit vectors [..., D], by surface measure."""
        check_value(self, value)
        return self._log_density(value)

    def _log_density(self, value: Tensor) -> Tensor:
        """Return [...] at checked values; not every subclass has it in closed form."""
        raise NotImplementedError

    @abstractmethod
    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Return differentiable draws [*sample_shape, ..., D]."""

    def rsample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008  as in torch
        seed: Seed = None,
    ) -> Float[Tensor, "... D"]:
        """Return draws [*sample_shape, ..., D], differentiable in loc and concentration."""
        return self._draw(as_shape("sample_shape", sample_shape), as_generator(seed))

    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008  as in torch
        seed: Seed = None,
    ) -> Float[Tensor, "... D"]:
        """Return ``rsample`` without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, seed)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LocationConcentration:
        """Return the same parameters for a larger batch."""
        shape = as_shape("batch_shape", batch_shape)
        tail = self.concentration.shape[len(self.batch_shape) :]
        loc, k = self.loc.expand(*shape, -1), self.concentration.expand(*shape, *tail)
        return type(self)(loc, k, validate_args=False)


def _concentration(loc: Tensor, concentration: Tensor | float) -> Tensor:
    """Return concentration as a tensor like loc."""
    check_floating("loc", loc, "[..., D]")
    if loc.dim() == 0:
        raise InputError("loc must be a floating tensor [..., D] of unit vectors.")
    if loc.shape[-1] < 2:
        raise InputError(f"loc must have at least 2 coordinates, not {loc.shape[-1]}.")
    if not torch.is_tensor(concentration):
        return as_tensor("concentration", concentration).to(loc)
    check_dense("concentration", concentration)
    if concentration.dtype != loc.dtype:
        raise DtypeError(f"concentration is {concentration.dtype}, loc is {loc.dtype}.")
    return concentration


def check_value(distribution: Distribution, value: Tensor) -> None:
    """Check what a density is asked for: floating vectors, in the support if that is checked.

    Raises
    ------
    InputError
        For anything else.
    """
    check_floating("value", value, "[..., D]")
    if value.shape[-1:] != distribution.event_shape:
        raise InputError(
            f"value has shape {tuple(value.shape)}: pass [..., {distribution.event_shape[0]}]."
        )
    check_broadcast(value=value.shape[:-1], distribution=distribution.batch_shape)
    if distribution._validate_args:
        try:
            distribution._validate_sample(value)
        except ValueError as error:
            raise InputError(f"value is not on the sphere: {error}") from error


def squared_chord(a: Float[Tensor, "... D"], b: Float[Tensor, "... D"]) -> Float[Tensor, " ..."]:
    """Return ``|a - b|^2 = 2 (1 - a.b)`` for unit vectors [..., D], exact where they nearly agree.

    Examples
    --------
    >>> squared_chord(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(2.)
    """
    return (a - b).square().sum(-1)
