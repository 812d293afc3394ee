"""Grey images, whose networks are trained from nothing: digits and FashionMNIST."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from benchmarks.datasets import load
from benchmarks.networks import lam_network, perceptron, strided_cnn
from benchmarks.tasks.task import Part, Task, Workspace


def digits(space: Workspace) -> Task:
    """Scikit-learn's digits against patches of photographs: seconds, nothing to download."""
    train = Part.of(space.load("digits", "train")).spread(space.size.train)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return Task(
        "digits",
        "scikit-learn's digits, 8x8; patches of photographs are out of distribution",
        train.subset(order[: -space.size.queries]),
        train.subset(order[-space.size.queries :]),
        Part.of(space.load("digits", "test")),
        {"photographs": Part.of(space.load("photographs", "test"))},
        partial(perceptron, 64, hidden=64),
    ).shown(space.size.queries)


def digits_unseen(space: Workspace) -> Task:
    """Zero-shot: four classes train, two validate, the four others are asked for."""
    train, test = Part.of(space.load("digits", "train")), Part.of(space.load("digits", "test"))
    return Task(
        "digits-unseen",
        "scikit-learn's digits, zero-shot: 4 classes train, 2 validate, queries show the 4 others",
        of_classes(train, range(4)),
        of_classes(train, (4, 5)),
        of_classes(test, range(6, 10)),
        {},
        partial(perceptron, 64, hidden=64),
        seen=of_classes(test, range(4)),
        new_classes=True,
    ).shown(space.size.queries)


def patches(space: Workspace) -> Task:
    """32x32 patches of scikit-learn's two photographs, whose classes are the photographs."""
    train, test = (
        Part.of(load("photographs", split, size=32, colour=True)) for split in ("train", "test")
    )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    held = len(train) // 4
    return Task(
        "photographs",
        "32x32 patches of scikit-learn's two photographs; their negatives are out of distribution",
        train.subset(order[:-held]),
        train.subset(order[-held:]),
        test,
        {"negatives": Part(1 - test.inputs, test.labels)},
        partial(perceptron, 3 * 32 * 32, hidden=64),
    ).shown(space.size.queries)


def fashion(space: Workspace) -> Task:
    """Closed set: the same ten classes for training and for queries."""
    n = space.size.queries
    train = Part.of(space.load("fashion-mnist", "train", space.size.train + n))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return Task(
        "fashion-mnist",
        "FashionMNIST, closed set: queries show the classes of the training",
        train.subset(order[:-n]),
        train.subset(order[-n:]),
        Part.of(space.load("fashion-mnist", "test", n)),
        {name: Part.of(space.load(name, "test", n)) for name in ("mnist", "kmnist")},
        lam_network if space.size.name == "paper" else convolutional,
    )


def of_classes(part: Part, classes: Iterable[int]) -> Part:
    """The rows of these classes."""
    return part.subset(torch.isin(part.labels, torch.tensor(list(classes))))


def convolutional(embedding_size: int) -> nn.Sequential:
    """`strided_cnn` in the memory format that CPUs like."""
    network = strided_cnn(embedding_size)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
