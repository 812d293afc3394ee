"""What makes a learnt concentration fall as an image is corrupted: labels or views, head or norm.

    python -m benchmarks variants --pieces views --data DIR --cache DIR

MCInfoNCE and explicit concentration on CIFAR-10, on features of a frozen EfficientNet-Lite0, as in
``python -m benchmarks corruption`` (30 rounds of 20 batches of 128, three seeds), with other pairs:

    labels         two images of a class, as they are (the protocol's own)
    views          two augmentations of one image, as the paper on explicit concentration has them:
                   crop, flip, colours; no hue
    views, noise   the same with Gaussian noise of a deviation up to .25 (its figure 3)

Images are read at 64 pixels in place of 96, 10,000 of them train. 2,000 of these have four
augmentations each, encoded once. Settings are the defaults of the comparison. 100 test images, 19
corruptions, 5 severities.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import baselines
from baselines import Training
from baselines.base.directional import Directional
from benchmarks.corruptions import TYPES, cropped
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import BATCH, BATCHES, DECAY, Fitting
from benchmarks.methods import METHODS
from benchmarks.protocols.corruption import of_means, response
from benchmarks.records import Store, write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Task, Workspace, build
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.evaluation import r_auroc

VIEWED, COPIES, SEEDS = 2_000, 4, (0, 1, 2)
SMALLEST, COLOURS, NOISE = 0.2**0.5, 0.3, 0.25
"""Least side of a crop (area .2), widest change of a colour, most noise (figure 3)."""
LABELS, VIEWS, NOISY = "labels", "views", "views, noise"
REGULARIZE = (0.0005, 0.04)
"""Least and largest weight of k^2 in table 8 of explicit concentration (alignment: .05)."""
NOISES = ("gaussian_noise", "speckle_noise", "shot_noise", "impulse_noise")


@dataclass(frozen=True)
class Line:
    """A method, its settings beside those that were chosen, and its pairs."""

    method: str
    pairs: str
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """As in the table."""
        more = "".join(f", {key} {value}" for key, value in self.settings.items())
        return f"{self.method}{more}: {self.pairs}"


KINDS: dict[str, Callable[..., Directional]] = {
    "mcinfonce": baselines.MCInfoNCE,
    "explicit concentration": baselines.ExplicitConcentration,
}
LINES = (
    Line("mcinfonce", LABELS, {}),
    *(Line(method, pairs, {}) for method in KINDS for pairs in (VIEWS, NOISY)),
    *(Line("explicit concentration", VIEWS, {"regularize": weight}) for weight in REGULARIZE),
)


def augmented(images: Tensor, seed: int, noise: float = 0.0) -> Tensor:
    """Crop, flip and change the colours of images [N, 3, H, W] in [0, 1].

    Then add Gaussian noise, each image with a deviation of its own, up to ``noise``.

    Examples
    --------
    >>> augmented(torch.rand(2, 3, 8, 8), 0).shape
    torch.Size([2, 3, 8, 8])
    """
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(images), 1, 1, 1, generator=g)

    kept = uniform(SMALLEST, 1.0).flatten()
    x = cropped(images, kept, seed)
    x = torch.where(uniform(0, 1) < 0.5, x.flip(-1), x)
    x = x * uniform(1 - COLOURS, 1 + COLOURS)
    mean, grey = x.mean((1, 2, 3), keepdim=True), x.mean(1, keepdim=True)
    x = mean + (x - mean) * uniform(1 - COLOURS, 1 + COLOURS)
    x = (grey + (x - grey) * uniform(1 - COLOURS, 1 + COLOURS)).clamp(0, 1)
    return (x + uniform(0, noise) * torch.randn(x.shape, generator=g)).clamp(0, 1)


def views(task: Task, noise: float = 0.0) -> Tensor:
    """Return features of the augmentations [V, N, D]."""
    part = task.train.spread(VIEWED)
    assert part.images is not None
    pixels = part.images.pixels

    def of(copy: int) -> Tensor:
        key = f"views {copy} of {part.digest}" + (f", noise {noise}" if noise else "")
        return task.made(key, lambda: augmented(pixels(), copy, noise))

    return torch.stack([of(copy) for copy in range(COPIES)])


class Pairs:
    """Every time it is gone through: other images, two of the augmentations of each.

    An image's label is its place in the batch.
    """

    def __init__(self, features: Tensor, seed: int) -> None:
        self.features = features
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        n_views, n = self.features.shape[:2]
        half = min(n, BATCH // 2)
        for _ in range(BATCHES):
            rows = torch.randperm(n, generator=self.generator)[:half]
            a, b = torch.randperm(n_views, generator=self.generator)[:2]
            labels = torch.arange(half).repeat(2)
            yield torch.cat([self.features[a, rows], self.features[b, rows]]), labels


def settings_of(method: str) -> dict[str, Any]:
    """Return the defaults of the comparison."""
    return dict(METHODS[method].default or {})


def trained(line: Line, fitting: Fitting) -> Directional:
    """One training."""
    settings = settings_of(line.method)
    training = Training(
        epochs=fitting.rounds,
        learning_rate=settings.pop("learning_rate"),
        decay=DECAY / fitting.rounds,
        seed=fitting.seed,
    )
    method = KINDS[line.method](
        fitting.network(), training=training, **{**settings, **line.settings}
    )
    loader: Any = fitting.loaders().training
    if line.pairs != LABELS:
        loader = Pairs(views(fitting.task, NOISE if line.pairs == NOISY else 0.0), fitting.seed)
    method.fit(loader, progress=False)
    return method


def measured(line: Line, fitting: Fitting) -> dict[str, float]:
    """Rank correlations of severity and mean uncertainty; errors; how much kappa varies."""
    method = trained(line, fitting)
    entry = METHODS[line.method]
    asked = Experiment(entry, method, fitting.task, fitting.space, fitting.seed)
    of = {kind: of_means(response(asked, kind)) for kind in TYPES}
    unsure, right = asked.answered
    kappa = asked.known.uncertainty.double().reciprocal()
    return {
        "severity": sum(of.values()) / len(of),
        **of,
        "recall@1": asked.recall.value,
        "r_auroc": r_auroc(unsure, right),
        "kappa": float(kappa.mean()),
        "variation": float(kappa.std() / kappa.mean()),
    }


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``views.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    size = replace(SMALL, corrupted=100, resamples=2, side=64, train=10_000)
    space = Workspace(options.data, options.cache, size, progress=False)
    task, store, rows = build("cifar10", space, 0), Store(options.cache / "views"), []
    for line in LINES:
        for seed in options.seeds or SEEDS:
            if not store.has(line.name, seed):
                fitting = Fitting(space, task, seed, size.rounds)
                store.write(measured(line, fitting), line.name, seed)
            row = store.read(line.name, seed)
            row.pop("environment")
            rows.append({"line": line.name, "seed": seed, **row})
            shown = {k: round(row[k], 3) for k in ("severity", "recall@1", "kappa", "variation")}
            print(line.name, seed, shown, flush=True)
    print(write_record("views", {"rows": rows}).name)
