"""Draws of each embedding: what sampling methods (dropout, ensembles) and a single point give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_floating
from laplace_metric.distributions import vmf_concentration
from laplace_metric.errors import InputError


@dataclass(frozen=True)
class Empirical:
    """S draws for each of B inputs; one draw is a point mass.

    Parameters
    ----------
    draws : Tensor [S, B, Z]
        Draws of each input, S of them.
    spherical : bool
        True if the draws are directions, so that ``mean`` is projected back to the sphere.

    Raises
    ------
    InputError
        For anything but a floating tensor of that shape.

    Examples
    --------
    >>> Empirical(torch.tensor([[[0.0]], [[2.0]]]), spherical=False).variance
    tensor([[1.]])
    """

    draws: Tensor
    spherical: bool

    def __post_init__(self) -> None:
        check_floating("draws", self.draws, "[S, B, Z]")
        if not len(self.draws):
            raise InputError("draws is empty: pass at least one draw of each input.")

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """Mean of the draws [B, Z], of unit length if spherical."""
        mean = self.draws.mean(0)
        return nn.functional.normalize(mean, dim=-1) if self.spherical else mean

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """Mean squared deviation of the draws from their (unprojected) mean [B, Z]."""
        return self.draws.var(0, correction=0)

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher kappa of the directions of the draws [B]."""
        directions = nn.functional.normalize(self.draws, dim=-1)
        resultant = directions.mean(0).norm(dim=-1).clamp_max(1)  # [B]
        return vmf_concentration(resultant, self.draws.shape[-1])

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B Z"]:
        """Return the draws themselves for ``n = S``, else n resampled ones [n, B, Z]."""
        generator, (s, b, _) = as_generator(seed), self.draws.shape
        if check_count("n", n, 0) == s:
            return self.draws
        pick = torch.randint(s, (n, b), generator=generator, device=self.draws.device)
        return self.draws[pick, torch.arange(b, device=pick.device)]  # [n, B, Z]

    def select(self, index: Tensor | slice) -> Empirical:
        """Return the distributions at ``index``."""
        return Empirical(self.draws[:, index], self.spherical)

    @classmethod
    def concatenate(cls, parts: Sequence[Empirical]) -> Empirical:
        """Return one batch out of several."""
        return cls(torch.cat([p.draws for p in parts], dim=1), parts[0].spherical)
