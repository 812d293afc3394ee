"""Queries as numbers: uncertainty and match probability of FashionMNIST and what replaces it.

The embedder is the network that metric learning trains in protocol 1 (``benchmarks.protocols.lam``;
Z = 64, read from its cache or trained), with the default Laplace posterior of 10,000 training
images, which are the gallery too; the match probability is that of the nearest item, calibrated on
the protocol's validation images. Nothing here has seen a test image.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.engine.fitting import Fitting
from benchmarks.sizes import SIZES
from benchmarks.tasks import Workspace
from benchmarks.tasks.grey import fashion
from laplace_metric import LaplaceEmbedder
from laplace_metric.datasets import load
from laplace_metric.search import Index

NAMES = ("uncertainty", "match probability")
BATCH = 250
SETTINGS = {"margin": 0.5080732227877204, "learning_rate": 0.0023382678345482836}
"""Chosen on validation images by protocol 1."""

Numbers = dict[str, Tensor]
"""Of each name one number a query [N]."""


def noisy(x: Tensor) -> Tensor:
    """Gaussian noise of standard deviation 0.1 on pixels in [0, 1]."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return (x + 0.1 * noise).clamp(0, 1)


def blurred(x: Tensor) -> Tensor:
    """The mean of 3x3 pixels."""
    return nn.functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


CHANGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "kmnist": ("kmnist", lambda x: x),
    "mnist": ("mnist", lambda x: x),
    "noise": ("fashion-mnist", noisy),
    "blur": ("fashion-mnist", blurred),
}
"""Name of a drift -> the test set that its queries come from, and what is done to them."""


def numbers(data: str | None, cache: Path, size: str, n_test: int) -> dict[str, Numbers]:
    """Both numbers of ``n_test`` test images: as they are ("fashion-mnist"), and of each change."""
    space = Workspace(data, cache, SIZES[size], progress=False)
    fitting = Fitting(space, fashion(space), seed=0, rounds=space.size.rounds)
    embedder = LaplaceEmbedder(fitting.trained_network(SETTINGS))
    gallery = fitting.loaders().gathered
    index = embedder.fit(gallery, progress=False).index(gallery, progress=False)
    index.calibrate(fitting.task.validation.loader(BATCH))
    found = {}
    for name, (dataset, change) in {"fashion-mnist": CHANGES["noise"], **CHANGES}.items():
        x = load(dataset, "test", data, n_test).pixels(slice(None))
        x = x if name == "fashion-mnist" else change(x)
        found[name] = _numbers(index, x)
    return found


def _numbers(index: Index, x: Tensor) -> Numbers:
    found = index.search(x.split(BATCH), k=1)
    assert found.match_probability is not None
    return dict(zip(NAMES, (found.uncertainty, found.match_probability[:, 0]), strict=True))
