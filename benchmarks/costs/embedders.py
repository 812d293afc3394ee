"""Trained embedders whose heads the benchmarks of the posterior share, as features and a head.

- ``fashion-mnist``: FashionMNIST through a dense network 784-256-128 and a head 128 -> 16;
- ``efficientnet``: EfficientNet-Lite0 features of CIFAR-10 and a head 1280 -> 3, small enough for
  the dense curvature that the others are measured against;
- ``efficientnet-64``: the same features and a head 1280 -> 64, as one would use it.
All three are trained with the contrastive loss of pytorch-metric-learning, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.encoders.features import encoded_images
from laplace_metric.training import train_embedder

NAMES = ("fashion-mnist", "efficientnet", "efficientnet-64")
N_POINTS, N_QUERIES, BATCH = 10_000, 2_500, 256


@dataclass(frozen=True)
class Problem:
    """Inputs of a trained linear head: points to fit [N, D] with labels [N], queries [M, D]."""

    name: str
    features: Tensor
    labels: Tensor
    queries: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def head(self) -> nn.Linear:
        """A linear layer with these weights."""
        with torch.random.fork_rng():
            layer = nn.Linear(self.weight.shape[1], self.weight.shape[0])
        layer.load_state_dict({"weight": self.weight, "bias": self.bias})
        return layer.eval()


def problem(name: str, data: str | None, cache: Path) -> Problem:
    """Train it, or read it from the cache."""
    path = cache / "embedders" / f"{name}.safetensors"
    if not path.is_file():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = _fashion(data) if name == "fashion-mnist" else _efficientnet(name, data, cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in vars(made).items() if k != "name"}, path)
    return Problem(name=name, **load_file(path))


def _fashion(data: str | None) -> Problem:
    train = load("fashion-mnist", "train", data, N_POINTS)
    test = load("fashion-mnist", "test", data, N_QUERIES)
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
    )
    head = nn.Linear(128, 16)
    x, queries = train.pixels(slice(None)), test.pixels(slice(None))
    _train(nn.Sequential(body, head), x, train.labels, epochs=5)
    with torch.no_grad():
        features, queries = body(x), body(queries)
    return _made("fashion-mnist", features, train.labels, queries, head)


def _efficientnet(name: str, data: str | None, cache: Path) -> Problem:
    train, labels = encoded_images(cache / "encoded", data, "cifar10", "train", N_POINTS)
    queries, _ = encoded_images(cache / "encoded", data, "cifar10", "test", N_QUERIES)
    head = nn.Linear(train.shape[1], 3 if name == "efficientnet" else 64)
    _train(head, train, labels, epochs=5)
    return _made(name, train, labels, queries, head)


def _train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    for _ in range(epochs):
        parts = torch.randperm(len(x)).split(BATCH)
        batches = [(x[part], y[part]) for part in parts]
        train_embedder(model, batches, ContrastiveLoss(neg_margin=0.5), epochs=1, progress=False)


def _made(name: str, h: Tensor, labels: Tensor, queries: Tensor, head: nn.Linear) -> Problem:
    weight, bias = head.weight.detach(), head.bias.detach()
    return Problem(name, h.detach(), labels, queries.detach(), weight, bias)
