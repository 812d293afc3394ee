"""CIFAR-10H: ten thousand images that about fifty people named, in the five folds of the paper.

Kirchhof et al. (2023a): five disjoint sets of 2,000; fold s trains on the sets s, s+1, s+2,
validates on s+3 and is asked with s+4 (mod 5). What validates in one fold is asked in another, so
settings are those chosen on CIFAR-10's training images, which nobody here is asked about.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.networks import perceptron
from benchmarks.tasks.frozen import FEATURES, encoder, features_of
from benchmarks.tasks.task import Part, Task
from benchmarks.tasks.workspace import Workspace

FOLDS = 5


def soft(space: Workspace, fold: int) -> Task:
    """Labels of a batch are drawn from what people said."""
    return _task(space, fold, softly=True)


def hard(space: Workspace, fold: int) -> Task:
    """The label of CIFAR-10."""
    return _task(space, fold, softly=False)


def _task(space: Workspace, fold: int, softly: bool) -> Task:
    whole = features_of(space, "cifar10", "test")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    sets = order.tensor_split(FOLDS)
    parts = [whole.subset(sets[(fold + i) % FOLDS]) for i in range(FOLDS)]
    train = whole.subset(torch.cat([sets[(fold + i) % FOLDS] for i in range(3)]))
    kind = "soft" if softly else "hard"
    return Task(
        f"cifar10h-{kind}",
        f"CIFAR-10H with {kind} labels, five folds, on features of a frozen EfficientNet-Lite0",
        replace(train, soft=shares(train)) if softly else train,
        parts[3],
        parts[4],
        {},
        partial(perceptron, FEATURES),
        encode=partial(encoder, space),
        tuned_on="cifar10",
    ).shown(space.size.queries)


def shares(part: Part) -> Tensor:
    """How many of those asked named each class [N, 10]."""
    assert part.images is not None
    counts = part.images.extras["cifar10h_counts"].double()
    return counts / counts.sum(1, keepdim=True)


def entropy(part: Part) -> Tensor:
    """Of the shares, in nats [N]."""
    p = shares(part)
    return -torch.special.xlogy(p, p).sum(1)
