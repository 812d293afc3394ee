"""The projected normal: the direction of a Gaussian, which is what a posterior gives on the sphere.

To first order in the spread, with ``u = loc/|loc|`` and ``r = |loc|``, the direction ``z/|z|`` has
mean u and the tangent covariance

    T = (I - u u^T) S (I - u u^T) / r^2                     S = diag(scale_squared)

(delta method). Samples are exact: draw z, divide by its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplace_metric.distributions.draws import gaussian_draws
from laplace_metric.distributions.vmf import vmf_concentration


@dataclass(frozen=True)
class ProjectedNormal:
    """``z / |z|`` for ``z ~ N(loc, diag(scale_squared))``, for each of B inputs.

    Parameters
    ----------
    loc, scale_squared : Tensor [B, Z]
        Of the Gaussian before projection.

    Examples
    --------
    >>> p = ProjectedNormal(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))
    >>> p.mean, p.variance
    (tensor([[1., 0.]]), tensor([[0.0000, 0.2500]]))
    """

    loc: Tensor
    scale_squared: Tensor

    @property
    def mean(self) -> Tensor:
        """The direction of ``loc`` [B, Z], unit length: the network's own embedding."""
        return nn.functional.normalize(self.loc, dim=-1)

    @property
    def variance(self) -> Tensor:
        """diag(T) [B, Z]: ``((1 - u_k^2)^2 S_k + u_k^2 sum_{l != k} u_l^2 S_l) / r^2``."""
        s, u2, r2 = self._parts()
        weighted = u2 * s
        others = (weighted.sum(-1, keepdim=True) - weighted).clamp_min(0)  # 0 up to rounding
        return ((1 - u2).square() * s + u2 * others) / r2

    @property
    def tangent_covariance(self) -> Tensor:
        """T [B, Z, Z]."""
        s, _, r2 = self._parts()
        u = self.mean
        tangent = (
            torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
            - u[..., :, None] * u[..., None, :]
        )
        return tangent @ (s[..., :, None] * tangent) / r2[..., None]

    @property
    def concentration(self) -> Tensor:
        """von Mises-Fisher kappa [B] from the resultant length ``R = (1 + tr T)^(-1/2)``.

        Exact to first order in tr T (where ``R = 1 - tr T / 2``), and for an isotropic S in high
        dimension, where ``R -> r / sqrt(r^2 + tr S)``.
        """
        resultant = (1 + self.variance.sum(-1)).rsqrt()
        return vmf_concentration(resultant, self.loc.shape[-1])

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws [n, B, Z] of unit length."""
        z = gaussian_draws(self.loc, self.scale_squared, n, generator)
        return nn.functional.normalize(z, dim=-1)

    def select(self, index: Tensor | slice) -> ProjectedNormal:
        """The distributions at ``index``."""
        return ProjectedNormal(self.loc[index], self.scale_squared[index])

    @classmethod
    def concatenate(cls, parts: Sequence[ProjectedNormal]) -> ProjectedNormal:
        """One batch out of several."""
        return cls(torch.cat([p.loc for p in parts]), torch.cat([p.scale_squared for p in parts]))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        r2 = self.loc.square().sum(-1, keepdim=True)
        return self.scale_squared, self.mean.square(), r2
