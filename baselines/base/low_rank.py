"""Covariances ``V V^T + diag(d)``: R (rank) + 1 numbers for each of the Z coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplace_metric.distributions import Covariance


@dataclass(frozen=True)
class LowRankCovariance(Covariance):
    """``C_b = V_b V_b^T + diag(d_b)``.

    Parameters
    ----------
    factor : Tensor [B, Z, R]
        V.
    diagonal_part : Tensor [B, Z]
        d > 0.

    Examples
    --------
    >>> LowRankCovariance(torch.ones(1, 2, 1), torch.ones(1, 2)).dense()
    tensor([[[2., 1.],
             [1., 2.]]])
    """

    factor: Tensor
    diagonal_part: Tensor

    def diagonal(self) -> Tensor:
        return self.factor.square().sum(-1) + self.diagonal_part

    def apply(self, vectors: Tensor) -> Tensor:
        inside = self.factor.mT @ vectors[..., None]
        return (self.factor @ inside)[..., 0] + self.diagonal_part * vectors

    def color(self, noise: Tensor) -> Tensor:
        """``C = D^{1/2} (I + U U^T) D^{1/2}`` with ``U = D^{-1/2} V``, and with ``U^T U = P s P^T``

        (I + U U^T)^{1/2} = I + U P diag(1 / (1 + sqrt(1 + s))) P^T U^T
        """
        u = self._scaled
        s, p = torch.linalg.eigh(u.mT @ u)
        up = u @ p  # [B, Z, R]
        weights = 1 / (1 + (1 + s.clamp_min(0)).sqrt())
        inside = torch.einsum("bzr,nbz->nbr", up, noise) * weights
        root = noise + torch.einsum("bzr,nbr->nbz", up, inside)
        return root * self.diagonal_part.sqrt()

    def dense(self) -> Tensor:
        return self.factor @ self.factor.mT + torch.diag_embed(self.diagonal_part)

    def logdet(self) -> Tensor:
        """``sum_k log d_k + log det(I_R + V^T diag(d)^-1 V)`` [B]: matrix determinant lemma."""
        u = self._scaled
        small = u.mT @ u + torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        return self.diagonal_part.log().sum(-1) + torch.linalg.slogdet(small).logabsdet

    def select(self, index: Any) -> LowRankCovariance:
        return LowRankCovariance(self.factor[index], self.diagonal_part[index])

    @classmethod
    def concatenate(cls, parts: Sequence[LowRankCovariance]) -> LowRankCovariance:
        return cls(
            torch.cat([p.factor for p in parts]), torch.cat([p.diagonal_part for p in parts])
        )

    @property
    def _scaled(self) -> Tensor:
        """U = diag(d)^{-1/2} V [B, Z, R]."""
        return self.factor / self.diagonal_part.sqrt()[..., None]
