"""What heads that are drawn from a posterior do on points of its fit.

Draws of a head share it among all inputs: they are searched among draws of the same head. The
posterior is the one that new points see (``_new_points``), as those of the fit would vary less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.blocks import LARGE_BYTES, blocks
from laplace_metric._utils.precision import full_precision
from laplace_metric.laplace._fitted import Draws, Fitted
from laplace_metric.laplace._posterior import Posterior

N_DRAWS, FEW_POINTS = (8, 16), 1_000
"""Fewest and most heads that are drawn, and draws of points that fewer points are drawn up to."""
POINTS, NUMBERS = (250, 500), 2**17
"""Fewest and most points that are compared, and numbers in their embeddings."""


@dataclass(frozen=True)
class DrawnPoints:
    """Points of a fit under drawn heads.

    Parameters
    ----------
    embed : function
        Function t -> embeddings [s, n, Z] under s heads, drawn at t times the posterior's
        temperature. The noise is the same for every t, and 0 gives those of the trained head.
    labels : Tensor [n]
        Class of each point: two classes or more, of two points or more each.
    spherical : bool
        True if embeddings are directions.
    """

    embed: Callable[[float], Tensor]
    labels: Int[Tensor, " n"]
    spherical: bool

    @classmethod
    @full_precision()
    @torch.no_grad()
    def of(
        cls, fitted: Fitted, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"]
    ) -> DrawnPoints:
        """Draw heads from a seed of their own, on any device.

        Parameters
        ----------
        fitted : Fitted
            Head and posterior.
        features : Tensor [n, D]
            Inputs of the head at points of the fit (``compared_points``).
        labels : Tensor [n]
            Class of each point.
        """
        head, mean = fitted.jacobian, fitted.posterior.mean
        h = features.to(mean)
        least, most = N_DRAWS
        n_draws = max(least, min(most, FEW_POINTS // max(len(h), 1)))
        noise = _noise(fitted.posterior, n_draws)
        if head.linear:  # z_s = z + sqrt(t) dz_s: one product for every t
            h = h.double()
            z = head.forward_with(h, mean.double()[None])
            moved = torch.cat([head.forward_with(h, heads.double()) for heads in noise])
            return cls(lambda t: z + t**0.5 * moved, labels, fitted.spherical)
        # bends between two layers: every t asks for all heads anew
        forward, all_noise = head.forward_with, torch.cat(list(noise))
        return cls(lambda t: forward(h, mean + t**0.5 * all_noise), labels, fitted.spherical)

    @property
    def number(self) -> int:
        """Number of points."""
        return len(self.labels)

    def quality(self) -> Draws | None:
        """Return spread and recall; None without points."""
        if not self.number:
            return None
        draws, z = self.embed(1.0), self.embed(0.0)[:1]
        if self.spherical:
            draws, z = (nn.functional.normalize(x, dim=-1) for x in (draws, z))
            scale = 1.0
        else:
            scale = float((z - z.mean(1, keepdim=True)).square().sum(-1).mean())
        moved = float((draws - z).square().sum(-1).mean())
        spread = moved / scale if scale > 0 else float("inf")
        recall, recall_of_means = (float((self.margins(x) > 0).double().mean()) for x in (draws, z))
        return Draws(spread, recall, recall_of_means)

    @cached_property
    def _mates(self) -> Int[Tensor, "n m"]:
        """Points of the class of each point, itself included, which fills the other places."""
        _, code, sizes = self.labels.unique(return_inverse=True, return_counts=True)
        members = code.argsort(stable=True)
        slots = torch.arange(int(sizes.max()), device=code.device)
        at = (sizes.cumsum(0) - sizes)[code][:, None] + slots
        own = torch.arange(self.number, device=code.device)[:, None].expand_as(at)
        return torch.where(
            slots < sizes[code][:, None], members[at.clamp_max(self.number - 1)], own
        )

    def margins(self, draws: Float[Tensor, "s n Z"]) -> Float[Tensor, "s n"]:
        """Return by how much the nearest point of another class is farther than one of its own.

        Each draw is searched by itself. Lengths are in units of the largest coordinate about the
        mean; a point is found right where its margin is above 0.
        """
        if self.spherical:
            draws = nn.functional.normalize(draws, dim=-1)
        # Differences alone, and of size 1: products of what all share would drown them.
        center = draws[:1].mean(1)
        unit = (draws - center).abs().amax().clamp_min(torch.finfo(draws.dtype).tiny)
        draws = ((draws - center) / unit).float()
        margins = draws.new_empty(len(draws), self.number)
        for x, margin in zip(draws, margins, strict=True):
            # half the squared distance less |x|^2 / 2, which is the same for all points of a row
            apart = torch.addmm(x.square().sum(-1) / 2, x, x.mT, alpha=-1)
            own = apart.fill_diagonal_(torch.inf).gather(1, self._mates).amin(1)
            others = apart.scatter_(1, self._mates, torch.inf).amin(1)
            size = x.square().sum(-1) / 2
            near, far = ((2 * (nearest + size)).clamp_min(0).sqrt() for nearest in (own, others))
            torch.sub(far, near, out=margin)
        return margins.double()


def _noise(posterior: Posterior, n_draws: int) -> Iterator[Float[Tensor, "s P"]]:
    """Yield draws less their mean, by the symmetric root of the covariance, a few heads at a time.

    Another root would turn with the signs of eigenvectors, which differ between precisions and
    devices; the normal numbers are the same on all.
    """
    mean, basis, source = posterior.mean, posterior.basis, torch.Generator().manual_seed(0)
    deviation = posterior.spectrum.sqrt()
    # sizes decide which numbers are drawn: they count float32, whatever the posterior has
    for part in blocks(n_draws, 4 * len(mean), LARGE_BYTES):
        shape = part.stop - part.start, len(mean)
        normal = basis.to_eigenbasis(torch.randn(shape, generator=source).to(mean))
        yield basis.from_eigenbasis(normal * deviation)
