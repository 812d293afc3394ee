"""The image sets of the demo: for training, held out in two ways, and out-of-distribution."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from laplace_metric.cli.demo._recipes import DemoRecipe
from laplace_metric.datasets import ImageSet, load, split_classes

TRAINING_DRAWERS = 15  # of the 20 people who drew each Omniglot character
MIN_PER_CLASS = 5  # with fewer, retrieval would have next to nothing to find


@dataclass(frozen=True)
class DemoData:
    """Images to train on, new images of `seen` and of `unseen` classes, and others by title."""

    train: ImageSet
    seen: ImageSet
    unseen: ImageSet
    ood: dict[str, ImageSet]


def load_data(recipe: DemoRecipe, data: str | os.PathLike[str] | None = None) -> DemoData:
    """The image sets of a recipe; missing folders and files raise ``InputError``."""
    train, seen, unseen = (_by_class if recipe.n_seen else _by_drawer)(recipe, data)
    train, n = subsample(train, recipe.n_train), recipe.n_queries
    seen = seen.subset(torch.isin(seen.labels, train.labels.unique()))
    ood = {
        other.title: load(other.name, "test", data, n, **other.options)  # type: ignore[arg-type]
        for other in recipe.ood_sets
    }
    return DemoData(train, subsample(seen, n), subsample(unseen, n), ood)


def _by_class(
    recipe: DemoRecipe, data: str | os.PathLike[str] | None
) -> tuple[ImageSet, ImageSet, ImageSet]:
    """The first classes of the train split, the same of the test split, and all other classes."""
    classes = range(recipe.n_seen or 0)
    train, unseen = split_classes(load(recipe.dataset, "train", data), classes)
    seen, more_unseen = split_classes(load(recipe.dataset, "test", data), classes)
    unseen = replace(
        unseen,
        images=torch.cat([unseen.images, more_unseen.images]),
        labels=torch.cat([unseen.labels, more_unseen.labels]),
        extras={},
    )
    return train, seen, unseen


def _by_drawer(
    recipe: DemoRecipe, data: str | os.PathLike[str] | None
) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Some drawers of the background characters, the other drawers, the evaluation characters."""
    background = load(recipe.dataset, "train", data)
    of_training = background.extras["drawer"] <= TRAINING_DRAWERS
    unseen = load(recipe.dataset, "test", data)
    return background.subset(of_training), background.subset(~of_training), unseen


def subsample(images: ImageSet, n: int) -> ImageSet:
    """About n images: evenly spaced ones, or all of some classes if that left too few in each.

    Examples
    --------
    >>> labels = torch.arange(100) % 50
    >>> many = ImageSet(torch.zeros(100, 1, 2, 2), labels, "many", tuple(map(str, range(50))))
    >>> subsample(many, 6).labels.tolist()
    [0, 16, 33, 0, 16, 33]
    """
    if len(images) <= n:
        return images
    classes = images.labels.unique()
    if n >= MIN_PER_CLASS * len(classes):
        return images.subset(torch.arange(n) * len(images) // n)
    n_classes = max(2, n * len(classes) // len(images))
    chosen = classes[torch.arange(n_classes) * len(classes) // n_classes]
    return images.subset(torch.isin(images.labels, chosen))


class BalancedBatches:
    """Batches with equally many images of each of a few classes, drawn with replacement.

    Contrastive losses need several images of a class in a batch. One pass draws as many images
    as the set holds.

    Examples
    --------
    >>> labels = torch.tensor([0, 0, 0, 1, 1, 2])
    >>> images = ImageSet(torch.zeros(6, 1, 2, 2), labels, "six", tuple("abc"))
    >>> batches = BalancedBatches(images, 4, 2, torch.Generator().manual_seed(0))
    >>> [sorted(y.unique(return_counts=True)[1].tolist()) for x, y in batches]
    [[2, 2], [2, 2]]
    """

    def __init__(
        self, images: ImageSet, batch_size: int, n_classes: int, generator: torch.Generator
    ) -> None:
        self.images, self.generator = images, generator
        self._order = images.labels.argsort(stable=True)
        self._count = images.labels.unique(return_counts=True)[1]
        self._start = self._count.cumsum(0) - self._count
        self._classes = min(n_classes, len(self._count))
        self._each = max(2, batch_size // self._classes)

    def __len__(self) -> int:
        return math.ceil(len(self.images) / (self._classes * self._each))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(len(self)):
            rows = self._rows()
            yield self.images.pixels(rows), self.images.labels[rows]

    def _rows(self) -> Tensor:
        chosen = torch.randperm(len(self._count), generator=self.generator)[: self._classes]
        position = torch.rand(self._classes, self._each, generator=self.generator)
        offset = (position * self._count[chosen, None]).long()  # [classes, each]
        return self._order[self._start[chosen, None] + offset].flatten()
