"""Train, tune and measure one method under the protocol that all of them share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import Baseline, Training
from benchmarks.comparison.methods import Entry, Loaders, Losses
from benchmarks.networks import lam_network
from laplace_metric import LaplaceEmbedder, ProbabilisticEmbedder
from laplace_metric.datasets import ImageSet, load
from laplace_metric.evaluation import recall_at_k, sparsification
from laplace_metric.evaluation_protocol import evaluate_method

OUT = ("mnist", "kmnist")
ROUND = 2_560  # images of one round, an "epoch" of the loss curve
BATCH = 128
FULL, SHORT = 8, 3  # rounds of a training, and of one that is tuned
GATHERED = 20_000  # training images for post-hoc methods
TEST = 2_500
TUNING_SEED = 100
N_DRAWS = 30


@dataclass(frozen=True)
class Sets:
    """FashionMNIST's first 50,000 training images, 2,500 others to tune on, and the test images."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet
    out: dict[str, ImageSet]

    @classmethod
    def read(cls, folder: str | None) -> Sets:
        """From ``--data``."""
        train = load("fashion-mnist", "train", folder)
        return cls(
            train.subset(torch.arange(50_000)),
            train.subset(torch.arange(50_000, 50_000 + TEST)),
            load("fashion-mnist", "test", folder, TEST),
            {name: load(name, "test", folder, TEST) for name in OUT},
        )

    def loaders(self, seed: int) -> Loaders:
        """For one training."""
        gathered = self.train.subset(torch.arange(GATHERED))
        return Loaders(Rounds(self.train, seed), gathered.loader(500))


class Rounds:
    """Every time it is gone through: other random images, in batches."""

    def __init__(self, images: ImageSet, seed: int) -> None:
        self.images = images
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images), generator=self.generator)[:ROUND]
        for rows in order.split(BATCH):
            yield self.images.pixels(rows), self.images.labels[rows]


def new_network(size: int, seed: int) -> nn.Sequential:
    """The network of the LAM paper with its initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = lam_network(size)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def fit(
    entry: Entry, network: nn.Module, sets: Sets, seed: int, settings: dict[str, Any], rounds: int
) -> tuple[ProbabilisticEmbedder, Losses]:
    """Train or fit; the learning rate falls to a tenth over the rounds."""
    rate = settings.get("learning_rate", 1e-3)
    training = Training(
        epochs=rounds, learning_rate=rate, decay=2.3 / rounds, optimizer="rmsprop", seed=seed
    )
    own = {name: value for name, value in settings.items() if name != "learning_rate"}
    return entry.make(network, training, **own)(sets.loaders(seed))


def validate(method: ProbabilisticEmbedder, sets: Sets) -> dict[str, float]:
    """AUSC of recall@1 on the validation images: rank well, and retrieve well."""
    embedding, labels = method.embed(sets.validation.loader(250), progress=False)
    recall = recall_at_k(embedding.mean, labels, 1)
    kept = recall.counted
    curve = sparsification(embedding.uncertainty[kept], recall.per_query[kept])
    return {"ausc": curve.ausc, "recall@1": recall.value}


def measure(entry: Entry, method: ProbabilisticEmbedder, sets: Sets) -> dict[str, Any]:
    """The numbers of one fitted method on test images."""
    result = evaluate_method(
        method,
        sets.test.loader(250),
        {name: images.loader(250) for name, images in sets.out.items()},
        n_draws=entry.draws or N_DRAWS,
        generator=torch.Generator().manual_seed(0),
        n_bootstrap=200,
    )
    return {
        **result.numbers(),
        "inference_ms": 1e3 * inference_seconds(method, sets.test.pixels(slice(0, 250))),
        "added": added_numbers(method),
    }


def inference_seconds(method: ProbabilisticEmbedder, x: Tensor) -> float:
    """CPU seconds of one prediction, the least of three."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        method(x)
        seconds.append(time.process_time() - start)
    return min(seconds)


def added_numbers(method: ProbabilisticEmbedder) -> int:
    """Numbers that are learnt beyond the network's own (members, heads, proxies, memories)."""
    if isinstance(method, LaplaceEmbedder):
        basis = method.hessian_.basis
        blocks = getattr(basis, "blocks", ())
        sides = sum(block.left.numel() + block.right.numel() for block in blocks)
        return method.hessian_.eigenvalues.numel() + sides
    assert isinstance(method, Baseline)
    return sum(t.numel() for t in method.parts.state_dict().values())


def tune(entry: Entry, network: nn.Module, sets: Sets) -> list[dict[str, Any]]:
    """Every setting of the grid with its validation numbers, from short trainings."""
    assert not isinstance(entry.grid, str)
    tried = []
    for settings in entry.grid:
        method, _ = fit(entry, network, sets, TUNING_SEED, settings, SHORT)
        tried.append({"settings": settings, **validate(method, sets)})
    return tried
