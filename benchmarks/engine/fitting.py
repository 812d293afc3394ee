"""A fitted method for a task: new weights, one schedule for all methods, the same randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baselines import MetricLearning, Training
from benchmarks.engine.store import plain
from benchmarks.methods import BASE, METHODS, Entry, Loaders
from benchmarks.methods.entry import Losses, Settings
from benchmarks.tasks import Task, Workspace
from benchmarks.tasks.rounds import Rounds
from laplace_metric import ProbabilisticEmbedder

DECAY = 2.3
"""The learning rate falls by exp(-2.3), to a tenth, over a training."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """How long methods of one task and seed are trained, and what they may read."""

    space: Workspace
    task: Task
    seed: int
    rounds: int

    def loaders(self) -> Loaders:
        """The same random batches for every method."""
        return Loaders(
            Rounds(self.task.train, self.seed, self.task.per_class),
            self.task.train.spread(self.space.size.fit).loader(500),
        )

    def network(self) -> nn.Sequential:
        """New weights, the same for every method."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.task.network(self.space.size.embedding).to(self.space.device)

    def training(self, learning_rate: float) -> Training:
        """Adam, with a learning rate that falls to a tenth."""
        return Training(
            epochs=self.rounds,
            learning_rate=learning_rate,
            decay=DECAY / self.rounds,
            seed=self.seed,
        )

    def fit(
        self, entry: Entry, settings: Settings, network: nn.Module
    ) -> tuple[ProbabilisticEmbedder, Losses]:
        """Train or fit ``entry`` on ``network``."""
        own: dict[str, Any] = dict(settings)
        training = self.training(own.pop("learning_rate", 1e-3))
        return entry.make(network, training, **own)(self.loaders())

    def trained_network(self, settings: Settings) -> nn.Module:
        """What metric learning makes of the new weights, from the cache if it is there."""
        name = plain(self.task.name, self.space.size.name, self.seed, self.rounds, settings)
        folder = self.space.cache / "networks" / name
        if folder.exists():
            return MetricLearning.load(folder, self.network()).model
        method, _ = self.fit(METHODS[BASE], settings, self.network())
        assert isinstance(method, MetricLearning)
        folder.parent.mkdir(parents=True, exist_ok=True)
        method.save(folder)
        return method.model
