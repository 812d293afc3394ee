"""The image sets of a demonstration: trained on, held out in two ways, and strange."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from laplace_metric.cli.demo._recipes import DemoRecipe
from laplace_metric.datasets import ImageSet, load, split_classes

DRAWERS_TRAINED = 15  # of the 20 people who drew each Omniglot character
FEW = 5  # images of a class: with fewer, retrieval would have next to nothing to find


@dataclass(frozen=True)
class DemoData:
    """Four kinds of images; `seen` and `unseen` name the classes, all images of both are new."""

    train: ImageSet
    seen: ImageSet
    unseen: ImageSet
    out: dict[str, ImageSet]


def read(recipe: DemoRecipe, data: str | os.PathLike[str] | None = None) -> DemoData:
    """Load what a recipe asks for; missing folders and files raise ``InputError``."""
    sets = _by_class(recipe, data) if recipe.n_seen else _by_drawer(recipe, data)
    train, seen, unseen = sets
    train = thinned(train, recipe.n_train)
    seen = seen.subset(torch.isin(seen.labels, train.labels.unique()))
    out = {
        partner.title: load(partner.name, "test", data, recipe.n_queries, **partner.options)  # type: ignore[arg-type]
        for partner in recipe.partners
    }
    n = recipe.n_queries
    return DemoData(train, thinned(seen, n), thinned(unseen, n), out)


def _by_class(
    recipe: DemoRecipe, data: str | os.PathLike[str] | None
) -> tuple[ImageSet, ImageSet, ImageSet]:
    """The first classes of the train split, the same of the test split, and all other classes."""
    classes = range(recipe.n_seen or 0)
    train, unseen = split_classes(load(recipe.dataset, "train", data), classes)
    seen, more_unseen = split_classes(load(recipe.dataset, "test", data), classes)
    return train, seen, _joined(unseen, more_unseen)


def _by_drawer(
    recipe: DemoRecipe, data: str | os.PathLike[str] | None
) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Some drawers of the background characters, the other drawers, the evaluation characters."""
    background = load(recipe.dataset, "train", data)
    trained = background.extras["drawer"] <= DRAWERS_TRAINED
    unseen = load(recipe.dataset, "test", data)
    return background.subset(trained), background.subset(~trained), unseen


def thinned(images: ImageSet, n: int) -> ImageSet:
    """About n images: evenly spaced ones, or whole classes where they would be too few a class.

    Examples
    --------
    >>> labels = torch.arange(100) % 50
    >>> many = ImageSet(torch.zeros(100, 1, 2, 2), labels, "many", tuple(map(str, range(50))))
    >>> thinned(many, 6).labels.tolist()
    [0, 16, 33, 0, 16, 33]
    """
    if len(images) <= n:
        return images
    classes = images.labels.unique()
    if n >= FEW * len(classes):
        return images.subset(torch.arange(n) * len(images) // n)
    kept = max(2, n * len(classes) // len(images))
    chosen = classes[torch.arange(kept) * len(classes) // kept]
    return images.subset(torch.isin(images.labels, chosen))


def _joined(one: ImageSet, other: ImageSet) -> ImageSet:
    return replace(
        one,
        images=torch.cat([one.images, other.images]),
        labels=torch.cat([one.labels, other.labels]),
        extras={},
    )


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
        place = torch.rand(self._classes, self._each, generator=self.generator)
        offset = (place * self._count[chosen, None]).long()
        return self._order[self._start[chosen, None] + offset].flatten()
