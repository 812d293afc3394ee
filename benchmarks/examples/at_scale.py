"""What the examples with clusters share: a trained network, its data, and the fit to compare with.

Everything is float64, so that what is left of a difference is the rounding of sums.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from benchmarks import datasets
from laplace_metric import LaplaceEmbedder
from laplace_metric.training import train_embedder

Fit = Callable[[LaplaceEmbedder], LaplaceEmbedder]


@dataclass(frozen=True)
class Problem:
    """A trained model, inputs [N, ...] and labels [N]."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor

    def timed(self, name: str, fit: Fit) -> LaplaceEmbedder:
        """Fit; print how long it took."""
        start = time.perf_counter()
        fitted = fit(LaplaceEmbedder(self.model))
        print(f"{name:<24} {time.perf_counter() - start:6.2f} s")
        return fitted

    def compare(self, fits: dict[str, Fit]) -> None:
        """Print the time of each fit, and how far it is from ``fit`` in this process."""
        batches = list(zip(self.inputs.split(1024), self.labels.split(1024), strict=True))
        alone = self.timed("one process", lambda embedder: embedder.fit(batches, progress=False))
        for name, fit in fits.items():
            print(f"  largest difference: {difference(self.timed(name, fit), alone):.1e}")


def difference(one: LaplaceEmbedder, other: LaplaceEmbedder) -> float:
    """Of the curvature's diagonals, relative to the largest entry."""
    a, b = one.hessian_.diagonal(), other.hessian_.diagonal()
    return float((a - b).abs().max() / b.abs().max())


def problem(data: str | None, limit: int) -> Problem:
    """FashionMNIST if there is a folder, else scikit-learn's digits."""
    images = datasets.load("fashion-mnist" if data else "digits", "train", data, limit)
    torch.manual_seed(0)
    n_pixels = images.images[0].numel()
    layers = nn.Linear(n_pixels, 128), nn.ReLU(), nn.Linear(128, 16)
    model = nn.Sequential(nn.Flatten(), *layers)
    train_embedder(model, images.loader(64), ContrastiveLoss(), epochs=1, progress=False)
    return Problem(model.double(), images.pixels().double(), images.labels)


def chosen(description: str | None) -> Problem:
    """The problem that the command line asks for."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the image sets; without it, digits")
    parser.add_argument("--limit", type=int, default=60_000, help="images to fit on")
    options = parser.parse_args()
    return problem(options.data, options.limit)
