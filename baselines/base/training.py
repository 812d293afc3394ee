"""How a method is trained: the same few settings for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from laplace_metric.errors import InputError, UnknownNameError

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


@dataclass(frozen=True)
class Training:
    """Settings of a training.

    Parameters
    ----------
    epochs : int
        At least 1.
    learning_rate : float > 0
    decay : float >= 0
        The learning rate falls by exp(-decay) each epoch.
    weight_decay : float >= 0
    optimizer : "adam" | "adamw" | "rmsprop"
    seed : int
        Of new weights, dropout and sampled losses; global random states stay as they are.

    Examples
    --------
    >>> Training(epochs=2).learning_rate
    0.001
    """

    epochs: int = 10
    learning_rate: float = 1e-3
    decay: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "adam"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, tuple(OPTIMIZERS))
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise InputError(f"epochs={self.epochs!r}: pass a whole number >= 1.")
        for name in ("decay", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name}={getattr(self, name)!r}: pass a number >= 0.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate={self.learning_rate!r}: pass a number > 0.")

    def optimize(
        self, parameters: Iterable[nn.Parameter]
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """An optimiser of these parameters, and the scheduler of its learning rate."""
        trainable = [p for p in parameters if p.requires_grad]
        if not trainable:
            raise InputError("nothing to train: no parameter has requires_grad=True.")
        optimizer = OPTIMIZERS[self.optimizer](
            trainable,
            lr=self.learning_rate,  # type: ignore[call-arg]
            weight_decay=self.weight_decay,
        )
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-self.decay))
