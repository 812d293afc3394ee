"""What an image embedder with uncertainty is worth on a few CIFAR-10 images."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from benchmarks.encoders.encode import rgb
from benchmarks.examples.summary import Summary, summarise
from laplace_metric import LaplaceEmbedder
from laplace_metric.datasets import load


def look(title: str, embedder: LaplaceEmbedder, data: str | None, limit: int) -> Summary:
    """Fit on ``limit`` images, look at half as many known ones, and clothes as unknown ones."""

    def batches(dataset: str, split: str, n: int) -> Iterator[tuple[Tensor, Tensor]]:
        return rgb(load(dataset, split, data, n), 64)

    embedder.fit(batches("cifar10", "train", limit), progress=False)
    gallery = embedder.embed(batches("cifar10", "train", limit), progress=False)
    queries = embedder.embed(batches("cifar10", "test", limit // 2), progress=False)
    unknown, _ = embedder.embed(batches("fashion-mnist", "test", limit // 2), progress=False)
    return summarise(title, *gallery, *queries, unknown)
