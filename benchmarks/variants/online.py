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
from typing import Any

import torch
from torch import nn

from benchmarks.records import read_rows, write_record
from benchmarks.variants.post_hoc import (
    SEEDS,
    TESTS,
    Recorder,
    Sets,
    head_sets,
    image_sets,
    measure,
)
from benchmarks.variants.train import Run, train
from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric.errors import DegenerateCurvatureWarning
from laplace_metric.training import train_embedder

HESSIANS = ("fixed", "positives", "full")
PRIORS = (1.0, 100.0)
SIZE, FIT, LIMIT, EPOCHS, DECAY = 3, 20_000, 2_500, 2, 0.99


def on_head(embedder: LaplaceEmbedder, head: nn.Module) -> LaplaceEmbedder:
    """The same posterior on the head alone, whose inputs are kept."""
    located = replace(embedder.fitted_.head, name="", parts=(head, head))
    fitted = replace(embedder.fitted_, head=located)
    return LaplaceEmbedder.from_fitted(head, embedder.settings, fitted)


def post_hoc(run: Run, images: Sets, record: Recorder) -> None:
    """One plain training, one fit for each approximation."""
    kinds = [(hessian, prior) for hessian in HESSIANS for prior in PRIORS]
    if all(record.has(_name("laplace", *kind)) for kind in kinds):
        return

    network, losses, seconds = train(run, images["train"], partial(partial, train_embedder))
    sets = head_sets(network[:-1], images)
    for hessian, prior in kinds:
        embedder = LaplaceEmbedder(
            network[-1], hessian=hessian, structure="diag", positivity="clip", prior_precision=prior
        )
        start = time.perf_counter()
        embedder.fit(sets["train"], progress=False)
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
    losses: list[float] = []

    def trainer(network: nn.Module) -> Callable[..., LaplaceEmbedder]:
        options: dict[str, Any] = {"hessian": hessian, "prior_precision": prior}
        laplace = OnlineLaplace(network, decay=DECAY, **options)
        generator = torch.Generator().manual_seed(run.seed)

        def fit(*args: Any, **settings: Any) -> LaplaceEmbedder:
            embedder = laplace.fit(*args, generator=generator, **settings)
            losses[:] = laplace.losses_
            return embedder

        return fit

    network, embedder, seconds = train(run, images["train"], trainer)
    sets = head_sets(network[:-1], {name: images[name] for name in TESTS})
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


def run(options: Namespace) -> None:
    """Measure what is missing, and write the record."""
    sizes = (options.fit, options.limit, options.epochs)
    images = image_sets(options)
    folder = options.cache / "fit{}-test{}-epochs{}".format(*sizes)
    warnings.simplefilter("ignore", DegenerateCurvatureWarning)  # shown as clipped_fraction
    for seed in options.seeds or SEEDS:
        record = Recorder(folder, SIZE, seed)
        run = Run(SIZE, seed, epochs=options.epochs, limit=options.fit)
        post_hoc(run, images, record)
        for prior in PRIORS:
            for hessian in HESSIANS:
                online(run, hessian, prior, images, record)
    content = {"protocol": protocol(*sizes), "rows": read_rows(folder)}
    print(write_record("online", content).name)
