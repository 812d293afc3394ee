"""Embeddings of several models side by side: independent blocks of one vector.

With distributions of m = 1 .. M over embeddings u_m,

    v = [u_1 ; ... ; u_M] / sqrt(M)        <v(x), v(y)> = mean_m <u_m(x), u_m(y)>

so that inner products and squared distances are the means of those of the models, whose spaces have
no coordinates in common. If each u_m has length 1, so has v.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.distributions._embedding_distribution import EmbeddingDistribution
from laplace_metric.distributions._gaussian import Gaussian, ProjectedNormal
from laplace_metric.distributions._von_mises_fisher import vmf_concentration
from laplace_metric.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


class Concatenated:
    """``v = [u_1 ; ... ; u_M] / sqrt(M)`` of M independent distributions over embeddings.

    Parameters
    ----------
    parts : sequence of M Gaussian, or of M ProjectedNormal
        Distributions of the same B inputs, one for each model.

    Raises
    ------
    InputError
        For other distributions, or both kinds.

    Examples
    --------
    >>> part = ProjectedNormal(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))
    >>> both = Concatenated([part, part])
    >>> both.mean, bool((both.total_variance == part.total_variance).all())
    (tensor([[0.7071, 0.0000, 0.7071, 0.0000]]), True)
    """

    def __init__(self, parts: Sequence[EmbeddingDistribution]) -> None:
        kinds = {type(part) for part in parts}
        if len(kinds) != 1 or not kinds <= {Gaussian, ProjectedNormal}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
            raise InputError(f"parts are {names}: pass Gaussians, or ProjectedNormals.")
        self.parts: tuple[Gaussian | ProjectedNormal, ...] = tuple(parts)  # type: ignore[arg-type]
        self._root = len(self.parts) ** 0.5

    @property
    def mean(self) -> Float[Tensor, "B MZ"]:
        """[B, M Z], of unit length for directions."""
        return torch.cat([part.mean for part in self.parts], 1) / self._root

    @property
    def variance(self) -> Float[Tensor, "B MZ"]:
        """Expected squared deviation of each coordinate from ``mean`` [B, M Z]."""
        return torch.cat([part.variance for part in self.parts], 1) / len(self.parts)

    @property
    def total_variance(self) -> Float[Tensor, " B"]:
        """Expected squared distance from the mean [B]: the mean of those of the parts."""
        return torch.stack([part.total_variance for part in self.parts]).mean(0)

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher kappa [B] in M Z dimensions: from ``R = E cos``, or from its length."""
        if all(isinstance(part, ProjectedNormal) for part in self.parts):
            return vmf_concentration(1 - self.total_variance / 2, self.mean.shape[1])
        spread = torch.cat([part.variance for part in self.parts], 1) / len(self.parts)
        return ProjectedNormal(self.mean, spread).concentration

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B MZ"]:
        """Return draws [n, B, M Z], independent over n, B and the parts.

        Parameters
        ----------
        n : int
            Number of draws for each input, at least 0.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """
        generator = as_generator(seed)
        return torch.cat([part.sample(n, generator) for part in self.parts], 2) / self._root

    def select(self, index: Tensor | slice) -> Self:
        """Return the distributions at ``index``."""
        return type(self)([part.select(index) for part in self.parts])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return one batch of several."""
        columns = zip(*(part.parts for part in parts), strict=True)
        return cls([type(column[0]).concatenate(column) for column in columns])
