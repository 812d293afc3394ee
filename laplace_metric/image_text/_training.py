"""The training of two heads: a step over all pairs of a batch, watched, and resumable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.image_text._encoding import Encoder, encode
from laplace_metric.image_text._heads import GaussianHead, HeadOutput
from laplace_metric.image_text._pairs import ImageTextPairs, PairBatch, PairBatches, take_inputs
from laplace_metric.image_text._spread import SpreadMonitor
from laplace_metric.image_text.losses import Objective
from laplace_metric.models import Inputs
from laplace_metric.online._state import StateTree, shapes
from laplace_metric.training import Progress, descend

WARM_UP = 0.05
"""Share of the steps in which the learning rate rises."""
SCALAR_RATE = 10.0
"""Times the learning rate, for the scale and the offset of the loss."""

Features = Callable[[Tensor], Tensor]
"""Rows of a data set [B] -> features [B, F] or [B, 2, F]."""


class TwoHeads(nn.Module):
    """The heads of both towers and the objective that joins them."""

    def __init__(self, image: GaussianHead, text: GaussianHead, objective: Objective) -> None:
        super().__init__()
        self.image, self.text, self.objective = image, text, objective


def table(features: Tensor) -> Features:
    """Features of a frozen encoder: computed once, looked up by row."""
    return lambda rows: features[rows.to(features.device)]


def computed(encoder: Encoder, inputs: Inputs, name: str) -> Features:
    """Features of an encoder that trains."""
    return lambda rows: encode(encoder, take_inputs(inputs, rows), name, grad=True)


def optimizer_of(
    heads: TwoHeads,
    encoders: nn.ModuleList,
    learning_rate: float,
    weight_decay: float,
    encoder_rate: float,
) -> torch.optim.Optimizer:
    """AdamW; scale and offset learn faster and do not decay, encoders have a rate of their own."""
    own = [*heads.image.parameters(), *heads.text.parameters()]
    scalars = [p for p in heads.objective.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": own, "lr": learning_rate, "weight_decay": weight_decay},
        {"params": scalars, "lr": SCALAR_RATE * learning_rate, "weight_decay": 0.0},
    ]
    trained = [p for p in encoders.parameters() if p.requires_grad]
    if trained:
        rate = encoder_rate * learning_rate
        groups.append({"params": trained, "lr": rate, "weight_decay": weight_decay})
    for group in groups:
        group["initial_lr"] = group["lr"]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def rate_at(share: float) -> float:
    """Of the learning rate after a share of the steps: a linear rise, then half a cosine.

    Examples
    --------
    >>> rate_at(0.025), rate_at(0.05), round(rate_at(1.0), 6)
    (0.5, 1.0, 0.0)
    """
    if share < WARM_UP:
        return share / WARM_UP
    return (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP))) / 2


@dataclass
class PairRun:
    """A training in progress.

    Parameters
    ----------
    images, texts : Features
        Of the rows of ``pairs``.
    encoders : nn.ModuleList
        Those that train too.
    settings : dict
        What must be the same in a run that goes on.
    masked : features or None, of images and of texts
        Of the same rows, with a part hidden.
    """

    heads: TwoHeads
    encoders: nn.ModuleList
    optimizer: torch.optim.Optimizer
    pairs: ImageTextPairs
    images: Features
    texts: Features
    loader: PairBatches
    device: torch.device
    settings: StateTree
    masked: tuple[Features | None, Features | None] = (None, None)
    progress: Progress = field(default_factory=Progress)
    image_spread: SpreadMonitor = field(default_factory=lambda: SpreadMonitor("images"))
    text_spread: SpreadMonitor = field(default_factory=lambda: SpreadMonitor("texts"))

    def step(self, rows: Tensor, _: Tensor) -> float:
        """One optimisation step on pairs [P, 2]; returns its loss."""
        rows = rows.cpu()
        i, i_rows = rows[:, 0].unique(return_inverse=True)
        j, j_rows = rows[:, 1].unique(return_inverse=True)
        image, text = self.heads.image(self.images(i)), self.heads.text(self.texts(j))
        local = torch.stack([i_rows, j_rows], 1)
        parts = self.pairs.match(i, j), local, self.pairs.images_per_text[j]
        batch = PairBatch(*(part.to(self.device) for part in parts))
        share = (self.progress.steps + 1) / (self.settings["epochs"] * len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate_at(min(share, 1.0))
        value = self.heads.objective(image, text, batch)
        value = value + self._masked_loss(self.heads.image, image, self.masked[0], i)
        value = value + self._masked_loss(self.heads.text, text, self.masked[1], j)
        loss = descend(value, self.optimizer)
        self.image_spread.add(image)
        self.text_spread.add(text)
        return loss

    def _masked_loss(
        self, head: GaussianHead, full: HeadOutput, masked: Features | None, rows: Tensor
    ) -> Tensor | float:
        if masked is None:
            return 0.0
        return self.heads.objective.masked_loss(full, head(masked(rows)))

    def identity(self) -> StateTree:
        """What must be the same in a run that goes on."""
        return {
            **self.settings,
            "objective": type(self.heads.objective).__name__,
            "weights": self.heads.objective.settings,
            "masked": [part is not None for part in self.masked],
            "heads": shapes(self.heads.state_dict()),
            "encoders": shapes(self.encoders.state_dict()),
            "pairs": [len(self.pairs), self.pairs.n_images, self.pairs.n_texts],
        }

    def state(self) -> StateTree:
        """What changes, without the random states."""
        return {
            "heads": self.heads.state_dict(),
            "encoders": self.encoders.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "spreads": [self.image_spread.state(), self.text_spread.state()],
        }

    def restore(self, state: StateTree) -> None:
        """Put back what ``state`` gave, in place."""
        for name in ("heads", "encoders", "optimizer"):
            getattr(self, name).load_state_dict(dict(state[name]))
        for name, value in state["progress"].items():
            setattr(self.progress, name, value)
        for monitor, saved in zip(
            (self.image_spread, self.text_spread), state["spreads"], strict=True
        ):
            monitor.restore(saved)

    def epoch_done(self) -> None:
        """Note the spreads, or stop."""
        self.image_spread.finish_epoch()
        self.text_spread.finish_epoch()

    def status(self, progress: Progress) -> str:
        """Loss and the spread of the last epoch."""
        line = f"loss {progress.mean_loss:.4g}"
        for side in (self.image_spread, self.text_spread):
            if side.history:
                line += f", {side.title}: spread {side.history[-1].means:.2f}"
                line += f", trace {side.history[-1].trace:.2g}"
        return line
