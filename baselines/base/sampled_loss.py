"""Losses that are expectations over draws of von Mises-Fisher embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from baselines.base.pairs import check_rows
from laplace_metric._utils.validation import check_count
from laplace_metric.distributions import VonMisesFisher


class SampledLoss(nn.Module, ABC):
    """``loss(embeddings, labels, concentration)``; subclasses say what it is ``of_draws``.

    Parameters
    ----------
    n_samples : int
        S, draws of each embedding; gradients reach directions and concentrations through them.

    Raises
    ------
    InputError
        If the arguments differ in length.
    """

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        check_count("n_samples", n_samples)
        self.n_samples = n_samples

    @abstractmethod
    def of_draws(self, z: Tensor, labels: Tensor) -> Tensor:
        """Draws [S, B, Z] and labels [B] -> scalar, in nats."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        concentration: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Directions [B, Z] (of any length) and concentrations [B] -> scalar, in nats."""
        check_rows(embeddings, labels, concentration=concentration)
        mu = nn.functional.normalize(embeddings, dim=-1)
        p = VonMisesFisher(mu, concentration, validate_args=False)
        return self.of_draws(p.rsample((self.n_samples,), generator=generator), labels)
