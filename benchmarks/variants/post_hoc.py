"""Closed-set OOD detection and calibration of Warburg et al. 2023 (LAM) on FashionMNIST.

    python -m benchmarks variants --pieces post_hoc --data DIR --cache DIR

Takes the networks of ``variants.train`` (embedding sizes 3 and 64, three seeds), puts every
method on them, and measures with ``benchmarks.engine.method``: queries are FashionMNIST
test images that search among themselves, MNIST and KMNIST test images are out of distribution.
Laplace is fitted on ``--fit`` training images, on the head's inputs (the backbone runs once), with
the default prior precision 1 and with the one that maximises the marginal likelihood. MC dropout
has its own networks, trained with dropout 0.2. No method is tuned on test images; the margin of
the training loss was (see ``train_lam``).

One JSON a run in the cache; a re-run measures what is missing. ``results/variants.json`` has all.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from baselines import Deterministic, MCDropout
from benchmarks.datasets import load
from benchmarks.engine.method import evaluate_method
from benchmarks.records import read_rows, write_record
from benchmarks.variants.train import Run, load_trained
from laplace_metric import LaplaceEmbedder, ProbabilisticEmbedder
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import DegenerateCurvatureWarning, PriorAtEdgeWarning

Pairs = list[tuple[Tensor, Tensor]]
Sets = dict[str, ImageSet]

OUT = ("mnist", "kmnist")
TESTS = ("fashion-mnist", *OUT)
SEEDS = (0, 1, 2)
N_DRAWS = 100
N_PASSES = 30  # of MC dropout, for its uncertainty and its joint draws alike
MARGIN = 0.5  # the margin that the networks were trained with
REFERENCE = 2_000
LAPLACE: dict[str, dict[str, Any]] = {
    **{
        f"laplace {distance} {hessian}": {"distance": distance, "hessian": hessian}
        for distance in ("euclidean", "arccos")
        for hessian in ("full", "positives", "fixed")
    },
    **{
        f"laplace {distance} fixed margin": {
            "distance": distance, "hessian": "fixed", "margin": MARGIN,
        }
        for distance in ("euclidean", "arccos")
    },
}  # fmt: skip


class NormalizedHead(nn.Module):
    """h -> z / |z|: the network as the euclidean distance on the sphere sees it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, Z] of unit length."""
        return nn.functional.normalize(self.head(features), dim=-1)


def image_sets(options: Namespace) -> Sets:
    """Test images of every set, and training images."""
    images = {n: load(n, "test", options.data, options.limit) for n in TESTS}
    return {**images, "train": load("fashion-mnist", "train", options.data, options.fit)}


@torch.no_grad()
def head_sets(backbone: nn.Module, images: Sets) -> dict[str, Pairs]:
    """The head's inputs of every set, batch by batch: the backbone runs once."""
    return {n: [(backbone(x), y) for x, y in of.loader(500)] for n, of in images.items()}


def measure(
    method: ProbabilisticEmbedder,
    sets: dict[str, Any],
    fit_seconds: float,
    n_draws: int = N_DRAWS,
    **extra: Any,
) -> dict[str, Any]:
    """The numbers of one fitted method on the queries and the OOD sets."""
    result = evaluate_method(
        method,
        sets["fashion-mnist"],
        {name: sets[name] for name in OUT},
        n_draws=n_draws,
        seed=torch.Generator().manual_seed(0),
        n_bootstrap=200,
    )
    return {**result.numbers(), "fit_seconds": fit_seconds, **extra}


def laplace_rows(
    head: nn.Linear, train: Pairs, sets: dict[str, Pairs], settings: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """One fit, measured under the default prior precision and under the marginal likelihood's."""
    model = NormalizedHead(head) if settings["distance"] == "euclidean" else head
    reference = REFERENCE if "margin" in settings else None
    start = time.perf_counter()
    embedder = LaplaceEmbedder(model, structure="diag", positivity="clip", **settings).fit(
        train, progress=False, reference=reference, seed=torch.Generator().manual_seed(0)
    )
    seconds = time.perf_counter() - start
    for prior in ("default", "marglik"):
        if prior == "marglik":
            embedder.tune_prior()
        extra: dict[str, Any] = {
            "prior_precision": embedder.posterior_.prior_precision,
            "clipped_fraction": embedder.hessian_.negative_fraction,
        }
        yield prior, measure(embedder, sets, seconds, **extra)


def run_laplace(cache: Path, size: int, seed: int, images: Sets, record: Recorder) -> None:
    """Deterministic and every Laplace variant on one network, from its head's inputs."""
    names = [f"{name} | {prior}" for name in LAPLACE for prior in ("default", "marglik")]
    if all(record.has(name) for name in ["deterministic", *names]):
        return
    network = load_trained(cache, Run(size, seed, 0.0))
    assert isinstance(network, nn.Sequential)
    backbone, head = network[:-1], network[-1]
    assert isinstance(head, nn.Linear)
    sets = head_sets(backbone, images)
    train = sets["train"]
    record("deterministic", lambda: measure(Deterministic(head).fit(train), sets, 0.0))
    for name, settings in LAPLACE.items():
        if all(record.has(f"{name} | {prior}") for prior in ("default", "marglik")):
            continue
        for prior, row in laplace_rows(head, train, sets, settings):
            record(f"{name} | {prior}", partial(dict, row))


def run_dropout(cache: Path, size: int, seed: int, images: Sets, record: Recorder) -> None:
    """MC dropout on the network that was trained with it."""
    network = load_trained(cache, Run(size, seed, 0.2))
    method = MCDropout(network, n_samples=N_PASSES, seed=torch.Generator().manual_seed(0))
    sets = {name: images[name].loader(100) for name in TESTS}
    record("mc dropout", lambda: measure(method, sets, 0.0, N_PASSES))


class Recorder:
    """Runs what has no record yet, and keeps one JSON for each (method, size, seed)."""

    def __init__(self, folder: Path, size: int, seed: int) -> None:
        self.folder, self.size, self.seed = folder, size, seed

    def _name(self, method: str) -> str:
        return f"{method.replace(' ', '_').replace('|', '-')}-z{self.size}-seed{self.seed}"

    def has(self, method: str) -> bool:
        """Whether this method was measured before."""
        return (self.folder / f"{self._name(method)}.json").is_file()

    def __call__(self, method: str, run: Callable[[], dict[str, Any]]) -> None:
        """Measure a method and keep its row, unless that is done."""
        if not self.has(method):
            row = {"method": method, "embedding_size": self.size, "seed": self.seed, **run()}
            write_record(self._name(method), row, self.folder)
            out = {name: round(numbers["auroc"], 3) for name, numbers in row["out"].items()}
            print(f"z={self.size} seed={self.seed} {method}: {out}", flush=True)


def run(options: Namespace) -> None:
    """Measure what is missing, and write the record."""
    images = image_sets(options)
    folder = options.cache / f"lam-fit{options.fit}-test{options.limit}"
    warnings.simplefilter("ignore", DegenerateCurvatureWarning)  # shown as clipped_fraction
    warnings.simplefilter("ignore", PriorAtEdgeWarning)
    for seed in options.seeds or SEEDS:
        for size in options.widths:
            record = Recorder(folder, size, seed)
            run_laplace(options.cache, size, seed, images, record)
            run_dropout(options.cache, size, seed, images, record)
    content = {"protocol": (__doc__ or "").split("\n\n")[2].strip(), "rows": read_rows(folder)}
    print(write_record("variants", content).name)
