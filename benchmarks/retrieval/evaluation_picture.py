"""What a guard of clothes does with unseen queries, as ``guard.evaluate`` draws it."""

from __future__ import annotations

from argparse import Namespace

import torch

from benchmarks.datasets import load
from benchmarks.plots import save_png
from benchmarks.records import FIGURES
from laplace_metric import Guard

N_ITEMS, N_QUERIES, PRECISION, NUMBERS = 2_000, 5_000, 0.9, 64


def run(options: Namespace) -> None:
    """Draw risk against coverage, and reliability, of random queries among random items."""
    images = load("fashion-mnist", "test", options.data)
    x = torch.as_tensor(images.images).float().flatten(1) / 255
    y = torch.as_tensor(images.labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    items, asked = order[:N_ITEMS], order[N_ITEMS : N_ITEMS + N_QUERIES]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        basis = torch.pca_lowrank(x[items], NUMBERS)[2]
    guard = Guard(x[items] @ basis, y[items], precision=PRECISION, progress=False)
    report = guard.evaluate(x[asked] @ basis, y[asked])
    print(report)
    save_png(report.plot(), (options.output or FIGURES) / "evaluation.png")
