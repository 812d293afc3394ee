"""One method of the comparison: how it is made, fitted, and tuned."""

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
    post_hoc : bool
        Whether it is put on the network that metric learning trained with the same seed.
    draws : int
        Joint draws for the calibration: one for points and for variants whose calibration is not
        asked, a member each for ensembles; 0: the usual.
    """

    name: str
    group: str
    make: Make
    space: Space | str = lambda trial: {}
    default: Settings | None = None
    post_hoc: bool = False
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
        method = MCDropout(learner.model, n_samples=PASSES, generator=generator)
        return method.fit(loaders.gathered, progress=False), learner.losses_

    return fit


def gathered(kind: Callable[..., ProbabilisticEmbedder], **fixed: Any) -> Make:
    """A method that summarises a trained network on the fixed part."""

    def make(network: nn.Module, _training: Training, **settings: Any) -> Fit:
        return lambda loaders: (
            kind(network, **fixed, **settings).fit(loaders.gathered, progress=False),
            [],
        )

    return make


def evidence(**fixed: Any) -> Make:
    """Laplace with the prior precision of the largest marginal likelihood."""

    def make(network: nn.Module, _training: Training, **settings: Any) -> Fit:
        def fit(loaders: Loaders) -> tuple[ProbabilisticEmbedder, Losses]:
            embedder = LaplaceEmbedder(network, **fixed, **settings)
            embedder.fit(loaders.gathered, progress=False)
            embedder.optimize_prior_precision()
            return embedder, []

        return fit

    return make
