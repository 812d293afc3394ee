"""The demo's experiment: one network, three ways to be uncertain about it, the same queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from baselines import Deterministic, MCDropout
from laplace_metric.cli.demo._data import BalancedBatches, DemoData
from laplace_metric.cli.demo._recipes import DemoRecipe
from laplace_metric.datasets import ImageSet
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.embedding import ProbabilisticEmbedder
from laplace_metric.evaluation import MethodResult, evaluate_method
from laplace_metric.training import train_embedder

EMBEDDING_SIZE = 16
DROPOUT_RATE = 0.2  # the rate of the Monte Carlo dropout baseline of Warburg et al. (2023)
TINY = 16  # pixels; below, strided convolutions would leave nothing
N_DRAWS = 100
N_BOOTSTRAP = 1000
BATCH = 250
POINT, DROPOUT, HIGHLIGHT = "Deterministic", "MC dropout", "Laplace"
NEW = "new classes"


def small_network(
    channels: int, side: int, *, embedding_size: int = EMBEDDING_SIZE, dropout: float = DROPOUT_RATE
) -> nn.Sequential:
    """Images [B, channels, side, side] -> embeddings [B, embedding_size], not normalised.

    Two hidden layers with dropout: dense for tiny images, strided convolutions for larger ones.

    Examples
    --------
    >>> small_network(1, 8)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 16])
    """
    body = _dense(channels, side, dropout) if side < TINY else _convolutions(channels, dropout)
    with torch.no_grad():
        width = body(torch.zeros(1, channels, side, side)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, embedding_size))


def _dense(channels: int, side: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * side * side, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
    )


def _convolutions(channels: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
    )


class Watch(Protocol):
    """Wraps a loader to show progress: part of the work called ``description``.

    The loader is run through ``passes`` times.
    """

    def __call__(
        self, description: str, loader: Iterable[Any], passes: int = 1
    ) -> Iterable[Any]: ...


def no_progress(description: str, loader: Iterable[Any], passes: int = 1) -> Iterable[Any]:
    """No progress display."""
    return loader


@dataclass(frozen=True)
class MethodRun:
    """One trained network: results on both query sets, by method."""

    seed: int
    losses: list[float]
    prior_precision: float
    seen: dict[str, MethodResult]
    unseen: dict[str, MethodResult]


@dataclass(frozen=True)
class Outcome:
    """Everything the report shows."""

    recipe: DemoRecipe
    data: DemoData
    runs: tuple[MethodRun, ...]

    def results(self, which: str) -> dict[str, tuple[MethodResult, ...]]:
        """By method, one result for each run, on the "seen" or "unseen" classes."""
        sides = [run.seen if which == "seen" else run.unseen for run in self.runs]
        return {name: tuple(side[name] for side in sides) for name in sides[0]}


def run_experiment(
    recipe: DemoRecipe, sets: DemoData, *, seed: int = 0, watch: Watch = no_progress
) -> Outcome:
    """Train, fit and evaluate ``recipe.n_seeds`` networks, the first with ``seed``.

    The same seed gives the same numbers on the same machine.
    """
    seeds = range(seed, seed + recipe.n_seeds)
    return Outcome(recipe, sets, tuple(_run(recipe, sets, one, watch) for one in seeds))


def _run(recipe: DemoRecipe, sets: DemoData, seed: int, watch: Watch) -> MethodRun:
    model, losses = train_network(recipe, sets, seed, watch)
    methods = fit_methods(model, sets, seed, watch)
    laplace = methods[HIGHLIGHT]
    assert isinstance(laplace, LaplaceEmbedder)
    return MethodRun(
        seed,
        losses,
        laplace.settings.prior_precision,
        seen=_evaluate(methods, sets.seen, {**sets.ood, NEW: sets.unseen}, seed, watch),
        unseen=_evaluate(methods, sets.unseen, sets.ood, seed, watch),
    )


def train_network(
    recipe: DemoRecipe, sets: DemoData, seed: int, watch: Watch = no_progress
) -> tuple[nn.Module, list[float]]:
    """The network in eval mode and its losses; global random state is left as it was."""
    batches = BalancedBatches(
        sets.train,
        recipe.batch_size,
        recipe.classes_per_batch,
        torch.Generator().manual_seed(seed),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        channels, side = sets.train.images.shape[1], sets.train.images.shape[-1]
        model = small_network(channels, side)
        losses = train_embedder(
            model,
            watch("training", batches, recipe.epochs),
            ContrastiveLoss(),
            epochs=recipe.epochs,
            progress=False,
        )
    return model.eval(), losses


def fit_methods(
    model: nn.Module, sets: DemoData, seed: int, watch: Watch = no_progress
) -> dict[str, ProbabilisticEmbedder]:
    """The three methods on the same network."""
    loader = watch("fitting Laplace", sets.train.loader(BATCH))
    laplace = LaplaceEmbedder(model).fit(loader, progress=False)
    laplace.optimize_prior_precision()
    return {
        POINT: Deterministic(model).fit(sets.train.loader(BATCH), progress=False),
        DROPOUT: MCDropout(model, n_samples=N_DRAWS, generator=torch.Generator().manual_seed(seed)),
        HIGHLIGHT: laplace,
    }


def _evaluate(
    methods: dict[str, ProbabilisticEmbedder],
    queries: ImageSet,
    ood: dict[str, ImageSet],
    seed: int,
    watch: Watch,
) -> dict[str, MethodResult]:
    return {
        name: evaluate_method(
            method,
            watch(f"evaluating {name}", queries.loader(BATCH)),
            {
                title: watch(f"evaluating {name}", images.loader(BATCH))
                for title, images in ood.items()
            },
            n_draws=N_DRAWS,
            generator=torch.Generator().manual_seed(seed),
            n_bootstrap=N_BOOTSTRAP,
        )
        for name, method in methods.items()
    }
