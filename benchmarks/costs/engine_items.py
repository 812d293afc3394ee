"""Items and queries for the engines that users run: real images, each once.

cifar10    EfficientNet-Lite0 features [1280] of 20,000 training images at 96 pixels, as arrays;
           queries are test images
grey       FashionMNIST, MNIST and KMNIST, 30 classes, through one network (784-256-64): the
           180,000 training images of all three and 20,000 of their test images; queries are other
           test images. 10,000 training images of each set trained the network and fitted the
           posterior, so they lie nearer together than new ones. Fewer items than 200,000 are a
           random part of them.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.features import encoded_images
from benchmarks.networks import perceptron
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.training import train_embedder

Labelled = tuple[Tensor, Tensor]
SETS = ("fashion-mnist", "mnist", "kmnist")
TRAINED, TESTED, EPOCHS = 10_000, 20_000, 5
CIFAR, FITTED, SIDE = 20_000, 10_000, 96
QUERIES = 1_000
"""To calibrate, and as many again to ask."""


@dataclass(frozen=True)
class EngineProblem:
    """An embedder, items for it, and queries.

    Parameters
    ----------
    name : str
    embedder : LaplaceEmbedder
    items, held_out, asked : (inputs [N, ...], labels [N])
    """

    name: str
    embedder: LaplaceEmbedder
    items: Labelled
    held_out: Labelled
    asked: Labelled

    def some(self, n: int) -> Labelled:
        """n items, the same every time."""
        rows = torch.randperm(len(self.items[1]), generator=torch.Generator().manual_seed(0))[:n]
        return self.items[0][rows], self.items[1][rows]

    def distinct(self, n: int) -> int:
        """Different inputs among n items."""
        return len({row.tobytes() for row in self.some(n)[0].flatten(1).numpy()})


def engine_problems(options: Namespace) -> Iterator[EngineProblem]:
    """Both, or those that were asked for.

    Raises
    ------
    InputError
        Without a data folder, and for other names.
    """
    data = options.data or os.environ.get("LAPLACE_METRIC_DATA")
    if data is None:
        raise InputError("--data is not given: name the folder of the image sets.")
    makers = {"cifar10": _cifar10, "grey": _grey}
    for name in options.problems or makers:
        if name not in makers:
            raise InputError(f"--problems {name} is not known: {', '.join(makers)} are.")
        yield makers[name](data, options)


def _cifar10(data: str, options: Namespace) -> EngineProblem:
    folder = options.cache / "encoded"
    how: dict[str, Any] = {"progress": False, "side": SIDE}
    items = encoded_images(folder, data, "cifar10", "train", CIFAR, **how)
    pool = encoded_images(folder, data, "cifar10", "test", None, **how)
    fitted = items[0][:FITTED], items[1][:FITTED]
    embedder = LaplaceEmbedder.from_embeddings(*fitted, progress=False)
    return EngineProblem("cifar10", embedder, items, *_queries(pool))


def _grey(data: str, options: Namespace) -> EngineProblem:
    train, test = (_joined(data, split) for split in ("train", "test"))
    n = len(train[1]) // len(SETS)
    rows = torch.cat([torch.arange(TRAINED) + n * part for part in range(len(SETS))])
    seen = train[0][rows], train[1][rows]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = perceptron(784, 64, hidden=256)
        orders = [torch.randperm(len(rows)).split(256) for _ in range(EPOCHS)]
        batches = [(seen[0][part], seen[1][part]) for order in orders for part in order]
        loss = ContrastiveLoss(neg_margin=0.5)
        train_embedder(model, batches, loss, epochs=1, progress=False)
    embedder = LaplaceEmbedder(model.eval()).fit([seen], progress=False)
    order = torch.randperm(len(test[1]), generator=torch.Generator().manual_seed(0))
    more, others = order[:TESTED], order[TESTED:]
    items = torch.cat([train[0], test[0][more]]), torch.cat([train[1], test[1][more]])
    return EngineProblem("grey", embedder, items, *_queries((test[0][others], test[1][others])))


def _joined(data: str, split: str) -> Labelled:
    """All sets, with classes of their own."""
    parts = [load(name, split, data) for name in SETS]
    labels = [part.labels + 10 * i for i, part in enumerate(parts)]
    return torch.cat([part.pixels(slice(None)) for part in parts]), torch.cat(labels)


def _queries(pool: Labelled) -> tuple[Labelled, Labelled]:
    order = torch.randperm(len(pool[1]), generator=torch.Generator().manual_seed(1))
    held, asked = order[:QUERIES], order[QUERIES : 2 * QUERIES]
    return (pool[0][held], pool[1][held]), (pool[0][asked], pool[1][asked])
