"""von Mises-Fisher embeddings, as the rest of the toolkit reads distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.distributions.von_mises_fisher import VonMisesFisher


@dataclass(frozen=True)
class Directions:
    """A mean direction and a concentration for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, D] of unit length
    concentration : Tensor [B] in [0, inf)

    Examples
    --------
    >>> d = Directions(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([2.0]))
    >>> d.variance.sum(-1)  # 2 (1 - A)
    tensor([0.9254])
    """

    loc: Tensor
    concentration: Tensor

    @property
    def distribution(self) -> VonMisesFisher:
        """The B distributions."""
        return VonMisesFisher(self.loc, self.concentration, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean directions [B, D], of unit length."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Mean squared deviation from ``mean`` [B, D]; its sum is ``E|z - mu|^2 = 2 (1 - A)``."""
        p = self.distribution
        return p.variance + ((1 - p.resultant)[..., None] * self.loc).square()

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws [n, B, D] of unit length."""
        return self.distribution.sample((n,), generator)

    def select(self, index: Tensor | slice) -> Directions:
        """The distributions at ``index``."""
        return Directions(self.loc[index], self.concentration[index])

    @classmethod
    def concatenate(cls, parts: Sequence[Directions]) -> Directions:
        """One batch out of several."""
        loc, k = (torch.cat([getattr(p, x) for p in parts]) for x in ("loc", "concentration"))
        return cls(loc, k)
