"""The networks that learn the posteriors of a process from its pairs: first mu, then kappa."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from baselines.base.pairs import log_mean_exp
from baselines.distributions import (
    VonMisesFisher,
    log_expected_likelihood,
    pairwise_log_expected_likelihood,
)
from baselines.mcinfonce import contrast
from benchmarks.recovery.process import Process
from benchmarks.sizes import TrainingSize

Vmf = VonMisesFisher
Loss = Callable[[Vmf, Vmf, Vmf, int], Tensor]
"""(posteriors of x [B], of x+ [B], of negatives [M] that all share, draws) -> scalar."""


def encoder(widths: tuple[int, ...]) -> nn.Sequential:
    """A leaky-ReLU network with these widths, inputs and outputs included."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers[:-1])


class Encoder(nn.Module):
    """mu(x) and kappa(x); kappa starts in ``start``.

    Networks of their own; with ``shared`` kappa is a smaller network that reads mu and does not
    teach it: while only mu learns, the loss would fall by directions of an ever larger kappa.
    ``latent`` is the length of mu, 0: D.
    """

    def __init__(
        self,
        dimension: int,
        hidden: tuple[int, ...],
        start: tuple[float, float],
        latent: int = 0,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.shared, latent = shared, latent or dimension
        self.location = encoder((dimension, *hidden, latent))
        first = (latent, *hidden[2:]) if shared else (dimension, *hidden[1:])
        self.certainty = encoder((*first, 1))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))
        self.set_range(dimension, start)

    scale: Tensor
    shift: Tensor

    @torch.no_grad()
    def set_range(self, dimension: int, start: tuple[float, float]) -> None:
        """As in the paper, kappa has the range of the truth before it learns."""
        raw = self._outputs(torch.rand(10_000, dimension))[1]
        low, high = (torch.tensor(k - 1).log() for k in start)
        self.scale.copy_((high - low) / (raw.max() - raw.min()))
        self.shift.copy_(low - self.scale * raw.min())

    def forward(self, x: Tensor) -> VonMisesFisher:
        """Posteriors of x [n, D]."""
        mu, raw = self._outputs(x)
        logit = self.scale * raw + self.shift
        return VonMisesFisher(mu, 1 + logit.exp(), validate_args=False)

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu = nn.functional.normalize(self.location(x - 0.5), dim=-1)
        return mu, self.certainty(mu.detach() if self.shared else x - 0.5)[:, 0]


def mcinfonce(x: Vmf, positive: Vmf, negative: Vmf, s: int) -> Tensor:
    """Eq. 7 with kappa_pos = 20."""
    z, z_positive, z_negative = (p.rsample((s,)) for p in (x, positive, negative))
    return contrast(20 * (z * z_positive).sum(-1), 20 * z_negative @ z.mT).mean()


def elk(x: Vmf, positive: Vmf, negative: Vmf, s: int, scale: float = 1) -> Tensor:
    """InfoNCE with the expected likelihood as the similarity; eq. 55 as printed: times 20."""
    close = log_expected_likelihood(x, positive)
    far = pairwise_log_expected_likelihood(negative, x)
    return contrast(scale * close[None], scale * far[None]).mean()


def infonce(x: Vmf, positive: Vmf, negative: Vmf, s: int) -> Tensor:
    """Eq. 7 of the locations alone; nothing teaches kappa."""
    close = (x.loc * positive.loc).sum(-1)
    return contrast(20 * close[None], 20 * (negative.loc @ x.loc.mT)[None]).mean()


def hib(x: Vmf, positive: Vmf, negative: Vmf, s: int) -> Tensor:
    """Eq. 54 with a = 2 kappa_pos and b = -20: draws match where their cosine exceeds a half."""
    z, z_positive, z_negative = (p.rsample((s,)) for p in (x, positive, negative))
    log_sigmoid = nn.functional.logsigmoid
    match = log_mean_exp(log_sigmoid(40 * (z * z_positive).sum(-1) - 20), 0)
    differ = log_mean_exp(log_sigmoid(20 - 40 * z_negative @ z.mT), 0)
    return -match.mean() - differ.mean()


LOSSES: dict[str, Loss] = {
    "mcinfonce": mcinfonce,
    "elk": elk,
    "elk times 20": partial(elk, scale=20),
    "hib": hib,
    "infonce": infonce,
}
JOINT = ("elk times 20",)
"""Losses under which mu and kappa learn together; under the others mu learns first."""


def train(
    process: Process, loss: str, size: TrainingSize, seed: int, progress: bool = True
) -> tuple[Encoder, list[float]]:
    """An encoder and the mean loss of each fiftieth of each phase of the training.

    Some networks learn in a phase, the others stand still; its rate falls to a tenth three times.
    """
    setting = process.setting
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        start = setting.smallest, setting.largest
        encoder = Encoder(setting.dimension, size.hidden, start, size.latent, size.shared)
        curve: list[float] = []
        phases = zip(_phases(encoder, loss), size.steps, size.draws, strict=False)
        for learning, steps, draws in phases:
            encoder.requires_grad_(False)
            for network in learning:
                network.requires_grad_(True)
            parameters = [p for p in encoder.parameters() if p.requires_grad]
            optimizer = torch.optim.Adam(parameters, lr=size.learning_rate)
            quarters = torch.optim.lr_scheduler.MultiStepLR(
                optimizer, [steps // 4, steps // 2, 3 * steps // 4], gamma=0.1
            )
            values = []
            for step in tqdm(range(steps), disable=not progress):
                if size.shared and encoder.certainty not in learning and step % 50 == 0:
                    encoder.set_range(setting.dimension, start)  # the mu that kappa reads moved
                x, positive = process.pairs(size.batch)
                negative = process.inputs(size.negatives)
                value = LOSSES[loss](encoder(x), encoder(positive), encoder(negative), draws)
                optimizer.zero_grad()
                torch.autograd.backward(value)
                optimizer.step()
                quarters.step()
                values.append(float(value.detach()))
            curve += chunk_means(values, 50)
    return encoder.eval(), curve


def _phases(encoder: Encoder, loss: str) -> list[tuple[nn.Module, ...]]:
    """Which networks learn, phase by phase."""
    if loss in JOINT:
        return [(encoder.location, encoder.certainty)] * 2
    if loss == "infonce":
        return [(encoder.location,)]
    return [(encoder.location,), (encoder.certainty,)]


def chunk_means(values: Iterable[float], n: int) -> list[float]:
    """Means of n consecutive parts."""
    return [float(part.mean()) for part in torch.tensor(list(values)).tensor_split(n) if len(part)]
