"""Photographs through a frozen EfficientNet-Lite0; a small network on its features is trained.

What a user with a pretrained encoder has. Images are encoded once and kept in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.features import Encoding, encoded, encoded_images
from benchmarks.encoders.pretrained import EFFICIENTNET_PACKAGES, EfficientNetLite0
from benchmarks.networks import perceptron
from benchmarks.tasks.grey import of_classes
from benchmarks.tasks.task import Part, Task, Workspace, together
from laplace_metric.errors import InputError

FEATURES = 1280
VALIDATION = 2_500
TRAINED = (0, 2, 4, 6, 8)  # airplane, bird, deer, frog, ship
CHOSEN = (1, 5)  # automobile, dog
ASKED = (3, 7, 9)  # cat, horse, truck
OOD_SETS = ("mnist", "fashion-mnist")
SPECIES, LEARNT, SIDE = 100, 40, 224
TITLES = {"hierarcaps": "photographs", "emoji": "emoji"}
"""What tables call the OOD sets that only some users have."""


def features_of(
    space: Workspace, name: str, split: str, limit: int | None = None, **options: int
) -> Part:
    """An image set with the features of its images."""
    images = space.load(name, split, limit, **options)  # first: it may fetch them
    size, side = options.get("size"), space.size.side
    cache = space.cache / "encoded"
    features, labels = encoded_images(
        cache, space.data, name, split, limit, size, space.progress, side
    )
    return Part(features, labels, images)


def encoder(space: Workspace, key: str, images: Callable[[], Tensor]) -> Tensor:
    """Features of images that are made, from the cache if ``key`` is known there."""
    options = f"side {space.size.side}, {key}"
    name = Encoding("efficientnet-lite0", "made", "any", None, EFFICIENTNET_PACKAGES, options)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for part in images().split(200):
            yield part.expand(-1, 3, -1, -1), torch.zeros(len(part), dtype=torch.long)

    network = partial(EfficientNetLite0, space.size.side)
    return encoded(name, network, batches, space.cache / "encoded", progress=False)[0]


def cifar10(space: Workspace) -> Task:
    """Closed set."""
    train = features_of(space, "cifar10", "train", space.size.train)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    held = min(VALIDATION, len(train) // 4)
    return Task(
        "cifar10",
        "CIFAR-10, closed set, on features of a frozen EfficientNet-Lite0",
        train.subset(order[:-held]),
        train.subset(order[-held:]),
        features_of(space, "cifar10", "test"),
        ood_sets(space),
        partial(perceptron, FEATURES),
        encode=partial(encoder, space),
    ).shown(space.size.queries)


def cifar10_unseen(space: Workspace) -> Task:
    """Zero-shot: five classes train, two validate, three are asked for."""
    train = features_of(space, "cifar10", "train", space.size.train)
    test = features_of(space, "cifar10", "test")
    return Task(
        "cifar10-unseen",
        "CIFAR-10, zero-shot: 5 classes train, 2 validate, queries show the 3 others; on features "
        "of a frozen EfficientNet-Lite0",
        of_classes(train, TRAINED),
        of_classes(train, CHOSEN),
        of_classes(test, ASKED),
        ood_sets(space),
        partial(perceptron, FEATURES),
        seen=of_classes(test, TRAINED),
        new_classes=True,
        encode=partial(encoder, space),
    ).shown(space.size.queries)


def cub(space: Workspace) -> Task:
    """Zero-shot: birds of 40 species train, 10 validate, queries show the 50 others.

    At 224 pixels in every size: what tells species apart is small.
    """
    space = replace(space, size=replace(space.size, side=SIDE))
    train, test = (square(space, "cub", split) for split in ("train", "test"))
    ood = {"cifar10": features_of(space, "cifar10", "test", space.size.queries)}
    return Task(
        "cub",
        "CUB, zero-shot: 40 of 100 species train, 10 validate, queries show the 50 others; on "
        f"features of a frozen EfficientNet-Lite0 at {SIDE} pixels",
        of_classes(train, range(LEARNT)),
        of_classes(train, range(LEARNT, SPECIES // 2)),
        of_classes(together(train, test), range(SPECIES // 2, SPECIES)),
        ood | if_there(space, "hierarcaps", "emoji"),
        partial(perceptron, FEATURES),
        seen=of_classes(test, range(LEARNT)),
        new_classes=True,
        encode=partial(encoder, space),
        per_class=4,
    ).shown(space.size.queries)


def square(space: Workspace, name: str, split: str) -> Part:
    """Features of all images of a split, read as squares of the encoder's side."""
    return features_of(space, name, split, size=space.size.side)


def ood_sets(space: Workspace) -> dict[str, Part]:
    """Return out-of-distribution images."""
    return {name: features_of(space, name, "test", space.size.queries) for name in OOD_SETS}


def if_there(space: Workspace, *names: str) -> dict[str, Part]:
    """The test images of these sets, of those that the user has."""
    return {TITLES[name]: square(space, name, "test") for name in names if has(space, name)}


def has(space: Workspace, name: str) -> bool:
    """Whether the data folder holds an image set; a damaged one is an error."""
    try:
        load(name, "test", space.data, 1)
    except InputError:
        return False
    return True


FOLDS = 5
"""Of CIFAR-10H (Kirchhof et al. 2023a): fold s trains on the disjoint sets s, s+1, s+2, validates
on s+3, is asked with s+4 (mod 5). What validates in one fold is asked in another, so settings are
those chosen on CIFAR-10's training images, which nobody here is asked about."""


def cifar10h_soft(space: Workspace, fold: int) -> Task:
    """Labels of a batch are drawn from what people said."""
    everything = features_of(space, "cifar10", "test")
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
    sets = order.tensor_split(FOLDS)
    parts = [everything.subset(sets[(fold + i) % FOLDS]) for i in range(FOLDS)]
    train = everything.subset(torch.cat([sets[(fold + i) % FOLDS] for i in range(3)]))
    return Task(
        "cifar10h-soft",
        "CIFAR-10H with soft labels, five folds, on features of a frozen EfficientNet-Lite0",
        replace(train, soft=shares(train)),
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
