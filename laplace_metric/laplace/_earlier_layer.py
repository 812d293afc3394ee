"""Earlier layers next to predictive vectors: what enters them ranks, too.

With g [E] the input of a layer (``heads/_earlier_layers``), U [E, p] the leading directions of the
second moment of the items' g, v the predictive vector and w the weight of the layer,

    u = U' g / |U' g|
    [sqrt(1 - w) v ; sqrt(w) u]              |v| = 1: the mean of two cosines, with weights 1 - w, w
    [v ; sqrt(w / (1 - w) s) u]              distances, s the mean of |v - mean v|^2 over items

The posterior is one of the last layer: this is information of the model that its embedding, trained
for other classes, has lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric.io import BELOW_ONE, POSITIVE, saved

DIRECTIONS = 128
"""Largest number p of directions."""
MOST = 20_000
"""Items of whose inputs the second moment is taken, evenly spaced."""
TINY = 1e-12
"""Length below which an input has no direction."""


@dataclass(frozen=True)
class EarlierLayer:
    """Map from the inputs of a layer to unit vectors, and their weight in a ranking.

    Parameters
    ----------
    name : str
        Name of the layer in the model.
    weight : float in (0, 1)
        Weight w of the layer.
    unit : float >= 0
        Mean s of ``|v - mean v|^2``; 1 where v has length 1.
    directions : Tensor [E, p]
        Leading directions U.
    """

    name: str = saved()
    weight: float = saved(POSITIVE, BELOW_ONE)
    unit: float = saved(0)
    directions: Float[Tensor, "E p"] = saved()

    @classmethod
    @full_precision()
    def of(cls, name: str, weight: float, unit: float, x: Float[Tensor, "N E"]) -> EarlierLayer:
        """Choose the directions of the inputs of a layer.

        Examples
        --------
        >>> layer = EarlierLayer.of("fc", 0.5, 1.0, torch.eye(3).repeat(2, 1))
        >>> layer(torch.eye(3)).shape
        torch.Size([3, 3])
        """
        some = x[:: -(-len(x) // MOST)]
        moment = (some.mT @ some).double()
        leading = torch.linalg.eigh(moment).eigenvectors[:, -DIRECTIONS:]
        return cls(name, weight, unit, leading.to(x).contiguous())

    @full_precision()
    def __call__(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N p"]:
        """Return u of inputs of the layer; 0 for inputs without a direction."""
        u = x @ self.directions.to(x)
        return u / u.norm(dim=1, keepdim=True).clamp_min(TINY)

    def beside(
        self, v: Float[Tensor, "N d"], u: Float[Tensor, "N p"], *, spherical: bool
    ) -> Float[Tensor, "N d_plus_p"]:
        """Return predictive vectors with u behind them."""
        own, other = self.roots(spherical=spherical)
        return torch.cat([own * v, other * u.to(v)], 1)

    def roots(self, *, spherical: bool) -> tuple[float, float]:
        """Return the factors of v and of u."""
        if spherical:
            return (1 - self.weight) ** 0.5, self.weight**0.5
        return 1.0, (self.weight / (1 - self.weight) * self.unit) ** 0.5
