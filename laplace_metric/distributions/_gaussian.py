"""A Gaussian over raw embeddings, and its direction: the projected normal on the unit sphere.

The direction ``d = z/|z|`` of ``z ~ N(loc, C)`` is compared with ``u = loc/|loc|``, the network's
own embedding. Everything is that of exact draws (draw z, divide by its length), by quadrature:

    total_variance    E |d - u|^2            ``_round_chord``
    variance          E (d_k - u_k)^2        ``_direction_variance``; their sum is total_variance

To first order in the spread, the second moment about u is the tangent covariance (delta method)

    T = (I - u u^T) C (I - u u^T) / |loc|^2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count
from laplace_metric.distributions._covariance import (
    Covariance,
    DiagonalCovariance,
    PendingCovariance,
    check_values,
    turned,
)
from laplace_metric.distributions._direction_variance import FIRST_ORDER, direction_variance
from laplace_metric.distributions._round_chord import ROWS
from laplace_metric.distributions._von_mises_fisher import vmf_concentration
from laplace_metric.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


def gaussian_draws(
    loc: Float[Tensor, "B Z"],
    covariance: Covariance,
    n: int,
    seed: Seed = None,
) -> Float[Tensor, "n B Z"]:
    """Draw n independent samples [n, B, Z] of N(loc, C).

    Examples
    --------
    >>> from laplace_metric.distributions import DiagonalCovariance
    >>> gaussian_draws(torch.ones(1, 2), DiagonalCovariance(torch.zeros(1, 2)), 3).unique()
    tensor([1.])
    """
    shape, generator = (check_count("n", n, 0), *loc.shape), as_generator(seed)
    noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
    return covariance.color(noise).add_(loc)


class HasCovariance:
    """Location and covariance of B Gaussians, with what both distributions do with them."""

    def __init__(
        self,
        loc: Float[Tensor, "B Z"],
        covariance: Float[Tensor, "B Z"] | Covariance | PendingCovariance,
    ) -> None:
        if not isinstance(covariance, (Covariance, PendingCovariance)):
            covariance = DiagonalCovariance(covariance)
        check_values("loc", loc, "" if isinstance(loc, Tensor) and loc.ndim == 2 else "[B, Z]")
        if covariance.shape != loc.shape:
            raise InputError(
                f"loc has shape {tuple(loc.shape)} and covariance {tuple(covariance.shape)}: pass "
                "one variance for each coordinate, or a covariance of as many embeddings."
            )
        self.loc, self._covariance = loc, covariance

    @property
    def covariance(self) -> Covariance:
        """C, computed now if it was not read before."""
        own = self._covariance
        return own.made if isinstance(own, PendingCovariance) else own

    def select(self, index: Tensor | slice) -> Self:
        """Return the distributions at ``index``."""
        return type(self)(self.loc[index], self.covariance.select(index))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return one batch of several, whose covariances must be of one kind."""
        covariances = [part.covariance for part in parts]
        kinds = sorted({type(covariance).__name__ for covariance in covariances})
        if len(kinds) > 1:
            raise InputError(f"covariances are {', '.join(kinds)}: pass embeddings of one method.")
        return cls(torch.cat([p.loc for p in parts]), covariances[0].concatenate(covariances))


class Gaussian(HasCovariance):
    """``z ~ N(loc, C)`` for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, Z]
        Mean of each embedding.
    covariance : Covariance or Tensor [B, Z]
        Covariances, or the variances of independent coordinates.

    Raises
    ------
    InputError
        For anything else, or shapes that do not fit.

    Examples
    --------
    >>> Gaussian(torch.zeros(2, 3), torch.ones(2, 3)).sample(5).shape
    torch.Size([5, 2, 3])
    """

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """[B, Z]."""
        return self.loc

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """[B, Z]."""
        return self.covariance.diagonal()

    @property
    def total_variance(self) -> Float[Tensor, " B"]:
        """tr C [B]."""
        return self.covariance.trace()

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """Concentration of the direction z / |z| [B]."""
        return ProjectedNormal(self.loc, self.covariance).concentration

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B Z"]:
        """Return draws [n, B, Z], independent over n and B.

        Parameters
        ----------
        n : int
            Number of draws for each input, at least 0.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """
        return gaussian_draws(self.loc, self.covariance, n, seed)


class ProjectedNormal(HasCovariance):
    """``z / |z|`` for ``z ~ N(loc, C)``, for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, Z]
        Mean of the Gaussian before the projection; its direction is ``mean``.
    covariance : Covariance, or variances [B, Z]
        Covariance C of the Gaussian before the projection, or the variances of its coordinates.

    Raises
    ------
    InputError
        For anything else, or shapes that do not fit.

    Examples
    --------
    >>> p = ProjectedNormal(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))
    >>> p.mean, p.variance
    (tensor([[1., 0.]]), tensor([[0.0952, 0.2162]]))
    """

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """The direction of ``loc`` [B, Z], unit length: the network's own embedding."""
        return nn.functional.normalize(self.loc, dim=-1)

    @property
    def variance(self) -> Float[Tensor, "B Z"]:
        """``E (d_k - u_k)^2`` of each coordinate [B, Z]; the sum is ``total_variance``."""
        return torch.cat([part._second_moments() for part in self._blocks()])

    def _second_moments(self) -> Tensor:
        """Return ``E (d_k - u_k)^2`` of a block."""
        square = self.loc.square().sum(1, keepdim=True)
        tangent = self.covariance.tangent_diagonal(self.mean) / square
        basis, values = self.covariance.spectrum()
        u = nn.functional.normalize(turned(self.loc, basis).double(), dim=1)
        values = values.double() / square
        share = direction_variance(u, values, None if basis is None else basis.double())
        share = torch.where(values.sum(1, keepdim=True) < FIRST_ORDER, tangent.double(), share)
        # two quadratures of one number: their errors are not to be seen in the sum
        total = self.covariance.chord(self.loc)[:, None]
        share = share * (
            total / share.sum(1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
        )
        return torch.where(square > 0, share.to(tangent), tangent)

    @property
    def total_variance(self) -> Float[Tensor, " B"]:
        """Expected squared distance from the mean direction [B], in [0, 2); see ``_round_chord``.

        Exact to .3 %, for covariances without a known eigenbasis in more than 16 dimensions as far
        as they are round.
        """
        return torch.cat([part.covariance.chord(part.loc) for part in self._blocks()])

    def _blocks(self) -> Iterator[ProjectedNormal]:
        """Yield the directions in blocks whose integrals fit a cache."""
        for start in range(0, max(1, len(self.loc)), ROWS):
            yield self if len(self.loc) <= ROWS else self.select(slice(start, start + ROWS))

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher kappa [B] from the resultant length ``R = E cos``."""
        resultant = 1 - self.total_variance / 2
        return vmf_concentration(resultant, self.loc.shape[-1])

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B Z"]:
        """Return exact draws [n, B, Z] of unit length.

        Parameters
        ----------
        n : int
            Number of draws for each input, at least 0.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """
        z = gaussian_draws(self.loc, self.covariance, n, seed)
        return nn.functional.normalize(z, dim=-1)
