"""What parameters and values on the sphere must satisfy, for ``torch.distributions``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints


class UnitVector(constraints.Constraint):
    """Vectors along the last axis of length 1, up to the rounding of their dtype.

    Examples
    --------
    >>> UnitVector().check(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([ True, False])
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """[...] whether each vector [..., D] is of unit length."""
        tolerance = 1e3 * torch.finfo(value.dtype).eps
        return (value.norm(dim=-1) - 1).abs() <= tolerance


class FiniteNonNegative(constraints.Constraint):
    """Numbers in [0, inf).

    Examples
    --------
    >>> FiniteNonNegative().check(torch.tensor([0.0, 1.0, -1.0, torch.inf, torch.nan]))
    tensor([ True,  True, False, False, False])
    """

    def check(self, value: Tensor) -> Tensor:
        """[...]"""
        return (value >= 0) & torch.isfinite(value)


class FinitePositive(constraints.Constraint):
    """Numbers in (0, inf).

    Examples
    --------
    >>> FinitePositive().check(torch.tensor([0.0, 1.0]))
    tensor([False,  True])
    """

    def check(self, value: Tensor) -> Tensor:
        """[...]"""
        return (value > 0) & torch.isfinite(value)


unit_vector = UnitVector()
finite_nonnegative = FiniteNonNegative()
finite_positive = FinitePositive()
