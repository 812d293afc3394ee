"""One method of the comparison: how it is made and fitted, and what a tuner may choose.

That is one or two numbers of a method and, where it is trained, its learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from baselines import DeepEnsemble, MCDropout, MetricLearning, Training
from baselines.base import Trained
from benchmarks.networks import with_dropout
from laplace_metric import LaplaceEmbedder, ProbabilisticEmbedder

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

Losses = list[float] | list[list[float]]
Settings = dict[str, Any]
Fit = Callable[["Loaders"], tuple[ProbabilisticEmbedder, Losses]]
Make = Callable[..., Fit]
"""``make(network, training, **settings)(loaders)`` -> (fitted method, its loss curve)."""
Space = Callable[["BaseTrial"], Settings]
PASSES = 30
"""Of MC dropout, for its uncertainty and its joint draws alike."""


@dataclass(frozen=True)
class Loaders:
    """What a method may read: rounds of random training inputs, and a fixed part of them."""

    training: Iterable[Any]
    gathered: Iterable[Any]


@dataclass(frozen=True)
class Entry:
    """One line of the tables.

    Parameters
    ----------
    space : function of an optuna trial, or the name of the method whose choice is taken
    default : settings
        The first that is tried; keys as in ``space``.
    base : str or None
        The method whose network of the same seed it is put on, if it is post hoc.
    number : "uncertainty" | "epistemic" | "near" | "far" | "ambiguity" | "match"
        Which number of an embedding is its uncertainty; "match": one minus the match probability
        of the nearest item, which looks at labels (``engine.matching``).
    draws : int
        Joint draws for the calibration: one for points and for variants whose calibration is not
        asked, a member each for ensembles; 0: the usual.
    """

    name: str
    group: str
    make: Make
    space: Space | str = lambda trial: {}
    default: Settings | None = None
    base: str | None = None
    number: str = "uncertainty"
    draws: int = 0

    @property
    def is_point(self) -> bool:
        """Whether it predicts one embedding, or is taken for one: it has no calibration."""
        return self.draws == 1


def trained(kind: Callable[..., Trained | DeepEnsemble], **fixed: Any) -> Make:
    """A method that learns from the rounds."""

    def make(network: nn.Module, training: Training, **settings: Any) -> Fit:
        def fit(loaders: Loaders) -> tuple[ProbabilisticEmbedder, Losses]:
            method = kind(network, training=training, **fixed, **settings)
            method.fit(loaders.training, progress=False)
            return method, method.losses_

        return fit

    return make


def contrastive(kind: Callable[..., Trained | DeepEnsemble], **fixed: Any) -> Make:
    """With the contrastive loss of pytorch-metric-learning."""

    def make(network: nn.Module, training: Training, margin: float) -> Fit:
        return trained(kind, loss=ContrastiveLoss(neg_margin=margin), **fixed)(network, training)

    return make


def mc_dropout(network: nn.Module, training: Training, rate: float, margin: float) -> Fit:
    """Metric learning through a network with dropout between its layers, sampled afterwards."""

    def fit(loaders: Loaders) -> tuple[ProbabilisticEmbedder, Losses]:
        layers = with_dropout(cast(nn.Sequential, network), rate)
        loss = ContrastiveLoss(neg_margin=margin)
        learner = MetricLearning(layers, loss=loss, training=training)
        learner.fit(loaders.training, progress=False)
        device = next(learner.model.parameters()).device
        generator = torch.Generator(device).manual_seed(0)
        method = MCDropout(learner.model, n_samples=PASSES, seed=generator)
        return method.fit(loaders.gathered, progress=False), learner.losses_

    return fit


def gathered(kind: Callable[..., ProbabilisticEmbedder], **fixed: Any) -> Make:
    """A method that summarises a trained network on the fixed part."""

    def make(network: nn.Module, _training: Training, **settings: Any) -> Fit:
        method = lambda: kind(network, **fixed, **settings)  # noqa: E731
        return lambda loaders: (method().fit(loaders.gathered, progress=False), [])

    return make


def evidence(**fixed: Any) -> Make:
    """Laplace with the prior precision of the largest marginal likelihood."""

    def make(network: nn.Module, _training: Training, **settings: Any) -> Fit:
        def fit(loaders: Loaders) -> tuple[ProbabilisticEmbedder, Losses]:
            embedder = LaplaceEmbedder(network, **fixed, **settings)
            embedder.fit(loaders.gathered, progress=False)
            embedder.tune_prior()
            return embedder, []

        return fit

    return make


RATE = (3e-4, 3e-3)
PRIORS = ("auto", 1e-3, 0.1, 10.0, 1e3)


def between(name: str, low: float, high: float, *, log: bool = True, rate: bool = True) -> Space:
    """One number, and the learning rate of what is trained."""

    def space(trial: BaseTrial) -> Settings:
        number = {name: trial.suggest_float(name, low, high, log=log)}
        return {**number, **learning_rate(trial)} if rate else number

    return space


def one_of(name: str, *values: Any) -> Space:
    """One of a few values, of what is not trained."""
    return lambda trial: {name: trial.suggest_categorical(name, values)}


def learning_rate(trial: BaseTrial) -> Settings:
    """Alone, for what has no number of its own."""
    return {"learning_rate": trial.suggest_float("learning_rate", *RATE, log=True)}


def dropout_space(trial: BaseTrial) -> Settings:
    """Rate of the dropout_space, margin of the loss, learning rate."""
    return {
        "rate": trial.suggest_float("rate", 0.05, 0.3),
        "margin": trial.suggest_float("margin", 0.3, 1.0),
        **learning_rate(trial),
    }


def hib_space(trial: BaseTrial) -> Settings:
    """Scale and shift of the sigmoid of the contrastive HIB."""
    return {
        "scale": trial.suggest_float("scale", 4, 32, log=True),
        "shift": trial.suggest_float("shift", -16, 0),
        **learning_rate(trial),
    }


def ensemble_space(trial: BaseTrial) -> Settings:
    """How the heads of a shared backbone learn, and what is their uncertainty."""
    return {
        "loss": trial.suggest_categorical("loss", ("mixture", "mean")),
        "score": trial.suggest_categorical("score", ("entropy", "jensen_shannon")),
        **learning_rate(trial),
    }


def laplace_space(trial: BaseTrial) -> Settings:
    """Structure, pairs and prior of a Laplace posterior."""
    return {
        "structure": trial.suggest_categorical("structure", ("kron", "diag")),
        "hessian": trial.suggest_categorical("hessian", ("fixed", "positives", "full")),
        "prior_precision": trial.suggest_categorical("prior_precision", PRIORS),
    }
