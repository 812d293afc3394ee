"""A fitted method for a task: its random batches, and settings chosen on validation data alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from baselines import MetricLearning, Training
from benchmarks.methods import BASE, METHODS, Entry, Loaders
from benchmarks.methods.entry import Losses, Settings
from benchmarks.records import plain
from benchmarks.tasks import Task, Workspace
from benchmarks.tasks.task import Part
from laplace_metric import ProbabilisticEmbedder
from laplace_metric.errors import LaplaceMetricError, MissingPackageError
from laplace_metric.evaluation import recall_at_k, sparsification

BATCH = 128
BATCHES = 20
"""Batches of a round; more where classes are so many that not all would be shown."""


class Schedule:
    """Every time it is gone through: other random inputs, in batches of 128.

    With ``per_class`` a batch has so many inputs of each of its classes (fewer where a class has
    fewer) and a round shows every class, else rows are drawn without looking. Soft labels are drawn
    anew for every batch, so that two inputs are positive with probability ``p . p'``.
    """

    def __init__(self, part: Part, seed: int, per_class: int | None = None) -> None:
        self.part, self.per_class = part, per_class
        self.generator = torch.Generator().manual_seed(seed)
        self.order = part.labels.argsort(stable=True)
        self.counts = part.labels.unique(return_counts=True)[1]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self._rows():
            yield self.part.read(rows), self._labels(rows)

    def __len__(self) -> int:
        if self.per_class is None:
            return BATCHES
        return max(BATCHES, -(-len(self.counts) // (BATCH // self.per_class)))

    def _rows(self) -> Iterator[Tensor]:
        if self.per_class is None:
            n = len(self.part)
            drawn = torch.randperm(n, generator=self.generator).repeat(-(-BATCH * BATCHES // n))
            yield from drawn[: BATCH * BATCHES].split(BATCH)
            return
        n, m, starts = len(self.counts), self.per_class, self.counts.cumsum(0) - self.counts
        turns = -(-len(self) * (BATCH // m) // n)
        order = torch.cat([torch.randperm(n, generator=self.generator) for _ in range(turns)])
        for classes in order.split(BATCH // m)[: len(self)]:
            rows = [self.order[starts[c] :][: self.counts[c]] for c in classes.unique()]
            yield torch.cat(
                [of[torch.randperm(len(of), generator=self.generator)[:m]] for of in rows]
            )

    def _labels(self, rows: Tensor) -> Tensor:
        if self.part.soft is None:
            return self.part.labels[rows]
        return torch.multinomial(self.part.soft[rows], 1, generator=self.generator).flatten()


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
            Schedule(self.task.train, self.seed, self.task.per_class),
            self.task.train.spread(self.space.size.fit).loader(500),
        )

    def network(self) -> nn.Sequential:
        """New weights, the same for every method."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.task.network(self.space.size.embedding).to(self.space.device)

    def fit(
        self, entry: Entry, settings: Settings, network: nn.Module
    ) -> tuple[ProbabilisticEmbedder, Losses]:
        """Train or fit ``entry`` on ``network``."""
        rest: dict[str, Any] = dict(settings)
        rate = rest.pop("learning_rate", 1e-3)
        # the learning rate falls to a tenth
        training = Training(
            epochs=self.rounds, learning_rate=rate, decay=DECAY / self.rounds, seed=self.seed
        )
        return entry.make(network, training, **rest)(self.loaders())

    def trained_network(self, settings: Settings) -> nn.Module:
        """What metric learning makes of the new weights, from the cache if it is there."""
        name = plain(self.task.name, self.space.size.name, self.seed, self.rounds, settings)
        path = self.space.cache / "networks" / f"{name}.safetensors"
        if path.exists():
            return MetricLearning.load(path, self.network()).model
        method, _ = self.fit(METHODS[BASE], settings, self.network())
        assert isinstance(method, MetricLearning)
        method.save(path)
        return method.model


Trial = dict[str, Any]


def validate(method: ProbabilisticEmbedder, fitting: Fitting) -> dict[str, float]:
    """AUSC of recall@1 on the validation part: rank well, and retrieve well."""
    embedding, labels = method.embed(fitting.task.validation.loader(), progress=False)
    recall = recall_at_k(embedding.mean, labels, 1)
    counted = recall.counted
    curve = sparsification(embedding.uncertainty[counted], recall.per_query[counted])
    return {"ausc": curve.ausc, "recall@1": recall.value}


def tune(entry: Entry, fitting: Fitting, network: nn.Module) -> list[Trial]:
    """Every setting that was tried, the defaults first, with its validation numbers.

    Optuna's tree-structured Parzen estimator, seeded. A setting that fails (a loss that is no
    longer finite, a number that does not fit the network) counts as tried, with its message.
    """
    assert not isinstance(entry.space, str)
    optuna = library()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(entry.default or {})
    tried: list[Trial] = []
    for _ in range(fitting.space.size.trials):
        trial = study.ask()
        settings = entry.space(trial)
        result = attempt(entry, fitting, network, settings)
        tried.append({"settings": settings, **result})
        failed = optuna.trial.TrialState.FAIL
        study.tell(trial, result.get("ausc"), failed if "error" in result else None)
    return tried


def library() -> ModuleType:
    """Optuna, without its lines about every trial."""
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        install = "pip install 'laplace-metric[benchmarks]'"
        raise MissingPackageError("optuna", "tuning", install) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def attempt(entry: Entry, fitting: Fitting, network: nn.Module, settings: Settings) -> Trial:
    """The validation numbers of one setting, or what went wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return validate(fitting.fit(entry, settings, network)[0], fitting)
    except LaplaceMetricError as error:
        return {"error": str(error)}


def best(tried: list[Trial]) -> Settings:
    """The settings of the largest AUSC, the earliest among equals."""
    return dict(max(tried, key=lambda one: one.get("ausc", -math.inf))["settings"])
