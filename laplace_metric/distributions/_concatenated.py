"""A mixture of embeddings of several models, whose spaces have no coordinates in common.

With distributions of m = 1 .. M over embeddings u_m of means a_m, and e_m (x) u the vector whose
m-th block is u and whose other blocks are 0,

    draw     s = e_m (x) u_m,  m uniform        <s(x), s(y)> = <u_m(x), u_m(y)> under one m
    mean     v = [a_1 ; ... ; a_M] / sqrt(M)    <v(x), v(y)> = mean_m <a_m(x), a_m(y)>
    variance E |s - e_m (x) a_m|^2 of each coordinate: [Var u_1 ; ... ; Var u_M] / M

so that inner products and squared distances of draws are those of one model, each as likely as any
other, and those of v are the means of those of the models. Deviations are from the mean of the
model that is drawn: a distance between means of two models means nothing. If each u_m has length
1, so have s and v.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric.distributions._embedding_distribution import EmbeddingDistribution
from laplace_metric.distributions._gaussian import Gaussian, ProjectedNormal
from laplace_metric.distributions._von_mises_fisher import vmf_concentration
from laplace_metric.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


class Concatenated:
    """Mixture of M distributions over embeddings, each in its own block of coordinates.

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
        """Means of the parts side by side, divided by sqrt(M); of unit length for directions."""
        return torch.cat([part.mean for part in self.parts], 1) / self._root

    @property
    def variance(self) -> Float[Tensor, "B MZ"]:
        """Expected squared deviation of each coordinate of a draw from its part's mean [B, M Z]."""
        return torch.cat([part.variance for part in self.parts], 1) / len(self.parts)

    @property
    def total_variance(self) -> Float[Tensor, " B"]:
        """Expected squared distance of a draw from its part's mean [B]."""
        return torch.stack([part.total_variance for part in self.parts]).mean(0)

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher kappa [B] in M Z dimensions: from ``R = E cos``, or from its length."""
        if all(isinstance(part, ProjectedNormal) for part in self.parts):
            return vmf_concentration(1 - self.total_variance / 2, self.mean.shape[1])
        spread = torch.cat([part.variance for part in self.parts], 1) / len(self.parts)
        return ProjectedNormal(self.mean, spread).concentration

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B MZ"]:
        """Return draws [n, B, M Z]: each is of one part, and 0 in the blocks of the others.

        A draw has the same part for all inputs, and is independent over n and B given the parts.
        The parts have n / M draws each, rounded down or up.

        Parameters
        ----------
        n : int
            Number of draws for each input, at least 0.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """
        generator = as_generator(seed)
        part_of_draw = drawn_parts(n, len(self.parts), generator)
        counts = part_of_draw.bincount(minlength=len(self.parts)).tolist()
        draws = [p.sample(m, generator) for p, m in zip(self.parts, counts, strict=True)]
        return in_blocks(draws, part_of_draw)

    def select(self, index: Tensor | slice) -> Self:
        """Return the distributions at ``index``."""
        return type(self)([part.select(index) for part in self.parts])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return one batch of several."""
        columns = zip(*(part.parts for part in parts), strict=True)
        return cls([type(column[0]).concatenate(column) for column in columns])


def drawn_parts(n: int, n_parts: int, generator: torch.Generator | None) -> Int[Tensor, " n"]:
    """Return a part for each of n draws, in turn from a random one on.

    Examples
    --------
    >>> drawn_parts(7, 3, torch.Generator().manual_seed(0)).tolist()
    [2, 0, 1, 2, 0, 1, 2]
    """
    # the random start makes every part equally likely for every draw
    return (torch.arange(n) + torch.randint(n_parts, (1,), generator=generator)) % n_parts


def in_blocks(
    draws: Sequence[Float[Tensor, "m B Z"]], part_of_draw: Int[Tensor, " n"]
) -> Float[Tensor, "n B MZ"]:
    """Return draws of each part, in their order, in its block; 0 in the others.

    Examples
    --------
    >>> one, two = torch.ones(1, 1, 2), 2 * torch.ones(1, 1, 2)
    >>> in_blocks([one, two], torch.tensor([1, 0])).tolist()
    [[[0.0, 0.0, 2.0, 2.0]], [[1.0, 1.0, 0.0, 0.0]]]
    """
    n_inputs, width = draws[0].shape[1:]
    dtype = reduce(torch.promote_types, [own.dtype for own in draws])
    found = draws[0].new_zeros(len(part_of_draw), n_inputs, len(draws), width, dtype=dtype)
    for part, own in enumerate(draws):
        found[(part_of_draw == part).to(own.device), :, part] = own.to(dtype)
    return found.flatten(2)
