"""Learn the posteriors of a process from its pairs: first mu, then kappa."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from tqdm.auto import tqdm

from benchmarks.recovery.encoders import JOINT, LOSSES, Encoder
from benchmarks.recovery.process import Process
from benchmarks.sizes import TrainingSize


def train(
    process: Process, loss: str, size: TrainingSize, seed: int, progress: bool = True
) -> tuple[Encoder, list[float]]:
    """An encoder and the mean loss of each hundredth of the training."""
    setting = process.setting
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = Encoder(setting.dimension, size.hidden, (setting.smallest, setting.largest))
        curve: list[float] = []
        for learning, steps, draws in zip(
            phases(encoder, loss), size.steps, size.draws, strict=False
        ):
            curve += _phase(process, encoder, learning, loss, size, steps, draws, progress)
    return encoder.eval(), curve


def phases(encoder: Encoder, loss: str) -> list[tuple[nn.Module, ...]]:
    """Which networks learn, phase by phase."""
    if loss in JOINT:
        return [(encoder.location, encoder.certainty)] * 2
    if loss == "infonce":
        return [(encoder.location,)]
    return [(encoder.location,), (encoder.certainty,)]


def _phase(
    process: Process,
    encoder: Encoder,
    learning: Iterable[nn.Module],
    loss: str,
    size: TrainingSize,
    steps: int,
    draws: int,
    progress: bool,
) -> list[float]:
    """Some networks learn, the others stand still; the rate falls to a tenth three times."""
    encoder.requires_grad_(False)
    for network in learning:
        network.requires_grad_(True)
    optimizer = torch.optim.Adam(
        [p for p in encoder.parameters() if p.requires_grad], lr=size.learning_rate
    )
    quarters = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [steps // 4, steps // 2, 3 * steps // 4], gamma=0.1
    )
    values = []
    for _ in tqdm(range(steps), disable=not progress):
        x, positive = process.pairs(size.batch)
        negative = process.inputs(size.negatives)
        value = LOSSES[loss](encoder(x), encoder(positive), encoder(negative), draws)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        quarters.step()
        values.append(float(value.detach()))
    return chunk_means(values, 50)


def chunk_means(values: Iterable[float], n: int) -> list[float]:
    """Means of n consecutive parts."""
    return [float(part.mean()) for part in torch.tensor(list(values)).tensor_split(n) if len(part)]
