"""The networks that learn the posteriors, and the losses that they learn by."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from baselines.base.pairs import log_mean_exp
from baselines.mcinfonce import contrast
from laplace_metric.distributions import (
    VonMisesFisher,
    log_expected_likelihood,
    pairwise_log_expected_likelihood,
)

Posterior = tuple[Tensor, Tensor]
"""mu [n, D], kappa [n]."""

Loss = Callable[[VonMisesFisher, VonMisesFisher, VonMisesFisher, int], Tensor]
"""(posteriors of x [B], of x+ [B], of negatives [M] that all share, draws) -> scalar."""


def encoder(widths: tuple[int, ...]) -> nn.Sequential:
    """A leaky-ReLU network with these widths, inputs and outputs included."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers[:-1])


class Encoder(nn.Module):
    """mu(x) and kappa(x), by networks of their own; kappa starts in ``start``."""

    def __init__(self, dimension: int, hidden: tuple[int, ...], start: tuple[float, float]) -> None:
        super().__init__()
        self.location = encoder((dimension, *hidden, dimension))
        self.certainty = encoder((dimension, *hidden[1:], 1))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))
        self._start(dimension, start)

    scale: Tensor
    shift: Tensor

    @torch.no_grad()
    def _start(self, dimension: int, start: tuple[float, float]) -> None:
        """As in the paper, kappa has the range of the truth before training."""
        raw = self.certainty(torch.rand(10_000, dimension) - 0.5)
        low, high = (torch.tensor(k - 1).log() for k in start)
        self.scale.copy_((high - low) / (raw.max() - raw.min()))
        self.shift.copy_(low - self.scale * raw.min())

    def forward(self, x: Tensor) -> VonMisesFisher:
        """Posteriors of x [n, D]."""
        mu = nn.functional.normalize(self.location(x - 0.5), dim=-1)
        logit = self.scale * self.certainty(x - 0.5)[:, 0] + self.shift
        return VonMisesFisher(mu, 1 + logit.exp(), validate_args=False)


def mcinfonce(
    x: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher, s: int
) -> Tensor:
    """Eq. 7 with kappa_pos = 20."""
    z, z_positive, z_negative = (p.rsample((s,)) for p in (x, positive, negative))
    return contrast(20 * (z * z_positive).sum(-1), 20 * z_negative @ z.mT).mean()


def elk(x: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher, s: int) -> Tensor:
    """InfoNCE with the expected likelihood itself as the similarity."""
    close = log_expected_likelihood(x, positive)
    far = pairwise_log_expected_likelihood(negative, x)
    return contrast(close[None], far[None]).mean()


def elk_scaled(
    x: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher, s: int
) -> Tensor:
    """Eq. 55 as printed, the similarity times kappa_pos = 20."""
    close = log_expected_likelihood(x, positive)
    far = pairwise_log_expected_likelihood(negative, x)
    return contrast(20 * close[None], 20 * far[None]).mean()


def infonce(
    x: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher, s: int
) -> Tensor:
    """Eq. 7 of the locations alone; nothing teaches kappa."""
    close = (x.loc * positive.loc).sum(-1)
    return contrast(20 * close[None], 20 * (negative.loc @ x.loc.mT)[None]).mean()


def hib(x: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher, s: int) -> Tensor:
    """Eq. 54 with a = 2 kappa_pos and b = -20: draws match where their cosine exceeds a half."""
    z, z_positive, z_negative = (p.rsample((s,)) for p in (x, positive, negative))
    log_sigmoid = nn.functional.logsigmoid
    match = log_mean_exp(log_sigmoid(40 * (z * z_positive).sum(-1) - 20), 0)
    differ = log_mean_exp(log_sigmoid(20 - 40 * z_negative @ z.mT), 0)
    return -match.mean() - differ.mean()


LOSSES: dict[str, Loss] = {
    "mcinfonce": mcinfonce,
    "elk": elk,
    "elk times 20": elk_scaled,
    "hib": hib,
    "infonce": infonce,
}
JOINT = ("elk times 20",)
"""Losses under which mu and kappa learn together; under the others mu learns first."""
