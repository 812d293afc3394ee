"""What an uncertainty is worth on queries, in four numbers; what the examples share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.features import rgb
from laplace_metric import Embedding, LaplaceEmbedder
from laplace_metric.evaluation import auroc
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours

DATA: dict[str, Any] = {"help": "folder of the image sets"}
IMAGES: dict[str, Any] = {"type": int, "default": 10_000, "help": "images of the gallery"}
TEXTS: dict[str, Any] = {"type": int, "help": "texts of each part"}


def command(description: str | None, run: Callable[..., Any], **options: dict[str, Any]) -> None:
    """Print what ``run`` gives for the options of the command line."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    for name, option in options.items():
        parser.add_argument(f"--{name}", **option)
    print(run(**vars(parser.parse_args())))


@dataclass(frozen=True)
class Summary:
    """Share of queries with a right nearest neighbour, and how well uncertainty tells trouble.

    ``sure_recall`` is that of the surer half of the queries; by uncertainty, ``wrong_auroc`` tells
    wrong neighbours from right ones, ``unknown_auroc`` unknown queries from known ones.
    """

    title: str
    recall: float
    sure_recall: float
    wrong_auroc: float
    unknown_auroc: float

    def __str__(self) -> str:
        return (
            f"{self.title}\n"
            f"  recall@1, all queries / surer half   {self.recall:.3f} / {self.sure_recall:.3f}\n"
            f"  AUROC, wrong neighbour               {self.wrong_auroc:.3f}\n"
            f"  AUROC, unknown query                 {self.unknown_auroc:.3f}"
        )


def summarise(
    title: str,
    gallery: Embedding,
    gallery_labels: Tensor,
    queries: Embedding,
    query_labels: Tensor,
    unknown: Embedding,
) -> Summary:
    """Retrieve every query's nearest gallery item and see what the uncertainty says."""
    neighbours = nearest_neighbours(queries.mean, gallery.mean, k=1)
    nearest = torch.as_tensor(neighbours.indices).flatten()
    right = gallery_labels[nearest] == query_labels
    u = queries.uncertainty
    sure = u <= u.median()
    return Summary(
        title=title,
        recall=float(right.double().mean()),
        sure_recall=float(right[sure].double().mean()),
        wrong_auroc=auroc(u[right], u[~right]),
        unknown_auroc=auroc(u, unknown.uncertainty),
    )


def look_at_photographs(
    title: str, embedder: LaplaceEmbedder, data: str | None, limit: int
) -> Summary:
    """Fit on ``limit`` images, look at half as many known ones, and clothes as unknown ones."""

    def batches(dataset: str, split: str, n: int) -> Iterator[tuple[Tensor, Tensor]]:
        return rgb(load(dataset, split, data, n), 64)

    embedder.fit(batches("cifar10", "train", limit), progress=False)
    gallery = embedder.embed(batches("cifar10", "train", limit), progress=False)
    queries = embedder.embed(batches("cifar10", "test", limit // 2), progress=False)
    unknown, _ = embedder.embed(batches("fashion-mnist", "test", limit // 2), progress=False)
    return summarise(title, *gallery, *queries, unknown)


def shapes_and_times(title: str, embedder: LaplaceEmbedder, inputs: Any, n: int) -> str:
    """Fit on one batch of n inputs of two classes, embed it, say what came out."""
    labels = torch.arange(n) % 2
    start = time.perf_counter()
    embedder.fit([(inputs, labels)], progress=False)
    fitted = time.perf_counter()
    embedding = embedder(inputs)
    variance = embedding.variance
    called = time.perf_counter()
    return (
        f"{title}: weights are random, so only shapes and times are shown\n"
        f"  head            {embedder.head_.name!r}, {embedder.posterior_.mean.numel():,} weights\n"
        f"  mean, variance  {list(embedding.mean.shape)}, {list(variance.shape)}\n"
        f"  fit, call       {fitted - start:.2f} s, {called - fitted:.2f} s for {n} inputs"
    )
