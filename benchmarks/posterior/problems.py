"""Networks, and the collections that are searched through them: head inputs and labels.

A small convolutional network is trained on one set with a loss of pytorch-metric-learning, and its
head fitted to 3,000 of the inputs that trained it. It then embeds new inputs of the same classes,
and sets of classes that it was never trained on. Networks of "development" were looked at while
the method was built; those of "confirmation" were not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import losses
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.trained_once import trained_once
from laplace_metric.training import train_embedder

Labelled = tuple[Tensor, Tensor]
N_TRAINED, N_FITTED, N_ITEMS, N_QUERIES, BATCH = 5_000, 3_000, 2_000, 1_000, 128
EPOCHS, CHARACTERS, DRAWINGS = 12, 300, 4
LOSSES: dict[str, Callable[[], Any]] = {
    "triplet": lambda: losses.TripletMarginLoss(margin=0.2),
    "contrastive": losses.ContrastiveLoss,
    "InfoNCE": lambda: losses.SupConLoss(0.1),
}
UNSEEN = ("mnist", "fashion-mnist", "kmnist")


@dataclass(frozen=True)
class Network:
    """One trained network: where it comes from and what part of the study it belongs to."""

    part: str
    source: str
    loss: str
    size: int

    @property
    def name(self) -> str:
        """Source, loss and size of the embedding."""
        return f"{self.source}, {self.loss}, Z = {self.size}"


NETWORKS = (
    Network("development", "kmnist", "triplet", 3),
    Network("development", "kmnist", "contrastive", 8),
    Network("development", "kmnist", "triplet", 32),
    Network("development", "kmnist", "InfoNCE", 128),
    Network("confirmation", "fashion-mnist", "triplet", 16),
    Network("confirmation", "fashion-mnist", "contrastive", 64),
    Network("confirmation", "mnist", "InfoNCE", 16),
    Network("confirmation", "omniglot", "triplet", 64),
)


@dataclass(frozen=True)
class Collection:
    """Head inputs [N, D] and labels of a gallery and of queries."""

    name: str
    items: Labelled
    queries: Labelled


@dataclass(frozen=True)
class Trained:
    """Head of a trained network, what it is fitted to, and what is searched."""

    head: nn.Linear
    fit: Labelled
    collections: tuple[Collection, ...]


def trained(network: Network, seed: int, data: Any, cache: Path) -> Trained:
    """Train a network, unless ``cache`` has it; return what its head sees of each collection."""
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(100 + seed)
    x, y = _images(network.source, "train" if network.source == "omniglot" else "test", data)
    mine = torch.randperm(len(x), generator=order)
    omniglot = network.source == "omniglot"
    used = mine if omniglot else mine[:N_TRAINED]
    body = _body()
    head = nn.Linear(body(x[:2]).shape[1], network.size)
    model = nn.Sequential(body, head)
    batches = _few_of_each if omniglot else _shuffled
    loader = _Epochs(lambda: batches(x[used], y[used]))
    train = partial(train_embedder, model, loader, LOSSES[network.loss](), epochs=EPOCHS)
    trained_once(model, train, f"{network.name}, seed {seed}", __name__, cache)
    model.eval()

    def seen(images: Tensor, labels: Tensor) -> Labelled:
        with torch.no_grad():
            return torch.cat([body(part) for part in images.split(500)]), labels

    fitted = (y < CHARACTERS).nonzero()[:, 0] if omniglot else used[:N_FITTED]
    collections = [_new(network, x, y, mine)] if not omniglot else [_characters(data, order)]
    for name in UNSEEN:
        if name != network.source:
            collections.append(_split(f"{name}, unseen", *_images(name, "test", data), order))
    return Trained(
        head,
        seen(x[fitted], y[fitted]),
        tuple(Collection(c.name, seen(*c.items), seen(*c.queries)) for c in collections),
    )


def _images(name: str, split: str, data: Any) -> Labelled:
    images = load(name, split, data)
    x = torch.as_tensor(images.images)
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    return x, torch.as_tensor(images.labels).long()


def _body() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )


class _Epochs:
    """A loader that draws its batches anew each epoch."""

    def __init__(self, batches: Callable[[], Iterator[Labelled]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Labelled]:
        return self.batches()


def _shuffled(x: Tensor, y: Tensor) -> Iterator[Labelled]:
    for rows in torch.randperm(len(x)).split(BATCH):
        yield x[rows], y[rows]


def _few_of_each(x: Tensor, y: Tensor) -> Iterator[Labelled]:
    """150 batches of four drawings of 32 characters."""
    members = [(y == c).nonzero()[:, 0] for c in y.unique().tolist()]
    for _ in range(150):
        some = torch.randperm(len(members))[: BATCH // DRAWINGS].tolist()
        rows = [members[c][torch.randperm(len(members[c]))[:DRAWINGS]] for c in some]
        yield x[torch.cat(rows)], y[torch.cat(rows)]


def _new(network: Network, x: Tensor, y: Tensor, order: Tensor) -> Collection:
    rows = order[N_TRAINED:]
    items, queries = rows[:N_ITEMS], rows[N_ITEMS : N_ITEMS + N_QUERIES]
    return Collection(f"{network.source}, new", (x[items], y[items]), (x[queries], y[queries]))


def _characters(data: Any, order: torch.Generator) -> Collection:
    x, y = _images("omniglot", "test", data)
    return _split("omniglot, new characters", x[y < CHARACTERS], y[y < CHARACTERS], order)


def _split(name: str, x: Tensor, y: Tensor, order: torch.Generator) -> Collection:
    rows = torch.randperm(len(x), generator=order)
    items, queries = rows[:N_ITEMS], rows[N_ITEMS : N_ITEMS + N_QUERIES]
    return Collection(name, (x[items], y[items]), (x[queries], y[queries]))
