"""Post-hoc against online Laplace on FashionMNIST, everything else the same.

    python -m benchmarks variants --pieces online --data DIR --cache DIR

The LAM network with Z = 3, trained as in ``variants.train`` (RMSprop, contrastive loss with
margin 0.5, no miner) but shorter: {fit:,} training images, {epochs} epochs of batches of {batch}.
Post-hoc: plain training, then a fit of all pairs of the same images. Online: the same initial
weights, batches, loss and steps, with one head drawn a step and a decay of {decay} (the run has
about {steps} steps). Both with distance arccos, a diagonal curvature, n_effective the number of
training images, and the prior precision 1 (the default) or 100 (near what the marginal likelihood
finds for the fits of ``variants.post_hoc``). Metrics as in ``variants.post_hoc``: {limit:,}
FashionMNIST test images search among themselves, as many MNIST and KMNIST test images are out of
distribution. Nothing was tuned on test images.

One JSON a run in the cache; a re-run measures what is missing. ``results/online.json`` has all.
"""

from __future__ import annotations

import math
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from benchmarks.networks import lam_network
from benchmarks.records import read_record, write_record
from benchmarks.variants.post_hoc import OUT, SEEDS, Recorder, Sets, features, measure
from benchmarks.variants.train import Run
from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric.datasets import load
from laplace_metric.errors import DegenerateCurvatureWarning
from laplace_metric.training import train_embedder

HESSIANS = ("fixed", "positives", "full")
PRIORS = (1.0, 100.0)
SIZE, FIT, LIMIT, EPOCHS, DECAY = 3, 20_000, 2_500, 2, 0.99

Train = Callable[..., Any]


def trained(run: Run, images: Sets, train: Callable[[nn.Module], Train]) -> tuple[Any, Any, float]:
    """Weights and batches of this run's seed, whoever trains: (network, result, seconds)."""
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        network = lam_network(run.embedding_size)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.RMSprop(network.parameters(), lr=run.learning_rate)
        loader = images["train"].loader(
            run.batch_size, True, torch.Generator().manual_seed(run.seed)
        )
        start = time.perf_counter()
        result = train(network)(
            loader,
            ContrastiveLoss(neg_margin=run.neg_margin),
            epochs=run.epochs,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-run.decay)),
        )
    return network.eval(), result, time.perf_counter() - start


def head_sets(network: nn.Sequential, images: Sets) -> dict[str, Any]:
    """The head's inputs of every test set: the backbone runs once."""
    return {name: features(network[:-1], images[name]) for name in ("fashion-mnist", *OUT)}


def on_head(embedder: LaplaceEmbedder, head: nn.Module) -> LaplaceEmbedder:
    """The same posterior on the head alone, whose inputs are kept."""
    found = embedder.fitted_
    located = replace(found.head, name="", parts=(head, head))
    return LaplaceEmbedder.from_fitted(head, embedder.settings, replace(found, head=located))


def post_hoc(run: Run, images: Sets, record: Recorder) -> None:
    """One plain training, one fit for each approximation."""
    kinds = [(hessian, prior) for hessian in HESSIANS for prior in PRIORS]
    if all(record.has(_name("laplace", *kind)) for kind in kinds):
        return

    def plain(network: nn.Module) -> Train:
        return lambda *args, **options: train_embedder(network, *args, **options)

    network, losses, seconds = trained(run, images, plain)
    sets, train = head_sets(network, images), features(network[:-1], images["train"])
    for hessian, prior in kinds:
        embedder = LaplaceEmbedder(
            network[-1], hessian=hessian, structure="diag", positivity="clip", prior_precision=prior
        )
        start = time.perf_counter()
        embedder.fit(train, progress=False)
        fit_seconds = time.perf_counter() - start
        numbers = partial(row, embedder, sets, fit_seconds, seconds, losses)
        record(_name("laplace", hessian, prior), numbers)


def _name(when: str, hessian: str, prior: float) -> str:
    """Of a method; prior precision 1 is the default and goes without saying."""
    return f"{when} arccos {hessian}" + ("" if prior == 1 else f" | prior {prior:g}")


def online(run: Run, hessian: str, prior: float, images: Sets, record: Recorder) -> None:
    """One training with its posterior."""
    name = _name("online", hessian, prior)
    if record.has(name):
        return
    laplaces: list[OnlineLaplace] = []

    def laplace(network: nn.Module) -> Train:
        options: dict[str, Any] = {"hessian": hessian, "prior_precision": prior}
        laplaces.append(OnlineLaplace(network, decay=DECAY, **options))
        generator = torch.Generator().manual_seed(run.seed)
        return lambda *args, **options: laplaces[0].fit(*args, generator=generator, **options)

    network, embedder, seconds = trained(run, images, laplace)
    sets = head_sets(network, images)
    losses = laplaces[0].losses_
    record(name, lambda: row(on_head(embedder, network[-1]), sets, 0.0, seconds, losses))


def row(
    embedder: LaplaceEmbedder,
    sets: dict[str, Any],
    fit_seconds: float,
    train_seconds: float,
    losses: list[float],
) -> dict[str, Any]:
    """The numbers of one posterior, and what it is made of."""
    return measure(
        embedder,
        sets,
        fit_seconds,
        train_seconds=train_seconds,
        losses=losses,
        clipped_fraction=embedder.hessian_.negative_fraction,
        mean_variance=float(embedder.posterior_.variance.mean()),
        n_effective=embedder.posterior_.n_effective,
    )


def protocol(fit: int, limit: int, epochs: int) -> str:
    """The second paragraph above, with the sizes."""
    batch = Run(SIZE).batch_size
    steps = epochs * math.ceil(fit / batch)
    text = (__doc__ or "").split("\n\n")[2].strip()
    return text.format(fit=fit, limit=limit, epochs=epochs, batch=batch, decay=DECAY, steps=steps)


def collect(folder: Path, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """All rows of the cache in one record."""
    rows = [read_record(path.stem, folder) for path in sorted(folder.glob("*.json"))]
    for found in rows:
        found.pop("environment")
    return {"protocol": protocol(*sizes), "rows": rows}


def run(options: Namespace) -> None:
    """Measure what is missing, and write the record."""
    sizes = (options.fit, options.limit, options.epochs)
    images = {n: load(n, "test", options.data, options.limit) for n in ("fashion-mnist", *OUT)}
    images["train"] = load("fashion-mnist", "train", options.data, options.fit)
    folder = options.cache / "fit{}-test{}-epochs{}".format(*sizes)
    warnings.simplefilter("ignore", DegenerateCurvatureWarning)  # shown as clipped_fraction
    for seed in options.seeds or SEEDS:
        record = Recorder(folder, SIZE, seed)
        run = Run(SIZE, seed, epochs=options.epochs, limit=options.fit)
        post_hoc(run, images, record)
        for prior in PRIORS:
            for hessian in HESSIANS:
                online(run, hessian, prior, images, record)
    print(write_record("online", collect(folder, sizes)).name)
