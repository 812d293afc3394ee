"""Items and queries for the engines that users run: real images, each once.

Images of 28 x 28 pixels, 30 classes, through one network (784-256-64): the training images of
FashionMNIST, the same mirrored, those of MNIST, and 20,000 of the test images of FashionMNIST,
MNIST and KMNIST; queries are other test images of all three. 10,000 training images of each of the
first two sets trained the network and fitted the posterior, so they lie nearer together than new
ones; KMNIST it has never seen. Fewer items than 200,000 are a random part of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.networks import perceptron
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.training import train_embedder

Labelled = tuple[Tensor, Tensor]
TRAINED, TESTED, EPOCHS = 10_000, 20_000, 5
QUERIES = 1_000
"""To calibrate, and as many again to ask."""


@dataclass(frozen=True)
class EngineProblem:
    """An embedder, items for it, and queries.

    Parameters
    ----------
    embedder : LaplaceEmbedder
    items, held_out, asked : (inputs [N, ...], labels [N])
    """

    embedder: LaplaceEmbedder
    items: Labelled
    held_out: Labelled
    asked: Labelled

    def some(self, n: int) -> Labelled:
        """n items, the same every time."""
        rows = torch.randperm(len(self.items[1]), generator=torch.Generator().manual_seed(0))[:n]
        return self.items[0][rows], self.items[1][rows]


def engine_problem(folder: str | None) -> EngineProblem:
    """Train the network, fit its posterior and return the items and queries.

    Raises
    ------
    InputError
        Without a data folder.
    """
    data = folder or os.environ.get("LAPLACE_METRIC_DATA")
    if data is None:
        raise InputError("--data is not given: name the folder of the image sets.")
    (clothes, kinds), digits = (_pixels(data, name, "train") for name in ("fashion-mnist", "mnist"))
    seen = _joined((clothes[:TRAINED], kinds[:TRAINED]), (digits[0][:TRAINED], digits[1][:TRAINED]))
    embedder = LaplaceEmbedder(_trained(seen)).fit([seen], progress=False)
    tests = [_pixels(data, name, "test") for name in ("fashion-mnist", "mnist", "kmnist")]
    x, y = _joined(*tests)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    more, others = order[:TESTED], order[TESTED:]
    whole = _joined((clothes, kinds), digits), (clothes.flip(-1), kinds), (x[more], y[more])
    items = torch.cat([part[0] for part in whole]), torch.cat([part[1] for part in whole])
    return EngineProblem(embedder, items, *_queries((x[others], y[others])))


def _trained(seen: Labelled) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = perceptron(784, 64, hidden=256)
        orders = [torch.randperm(len(seen[1])).split(256) for _ in range(EPOCHS)]
        batches = [(seen[0][part], seen[1][part]) for order in orders for part in order]
        loss = ContrastiveLoss(neg_margin=0.5)
        train_embedder(model, batches, loss, epochs=1, progress=False)
    return model.eval()


def _pixels(data: str, name: str, split: str) -> Labelled:
    images = load(name, split, data)
    return images.pixels(slice(None)), images.labels


def _joined(*sets: Labelled) -> Labelled:
    """Each with ten classes of its own."""
    labels = [labels + 10 * i for i, (_, labels) in enumerate(sets)]
    return torch.cat([x for x, _ in sets]), torch.cat(labels)


def _queries(pool: Labelled) -> tuple[Labelled, Labelled]:
    order = torch.randperm(len(pool[1]), generator=torch.Generator().manual_seed(1))
    held, asked = order[:QUERIES], order[QUERIES : 2 * QUERIES]
    return (pool[0][held], pool[1][held]), (pool[0][asked], pool[1][asked])
