"""Queries with their neighbours: ``python -m benchmarks retrieval --pieces neighbours``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch

from benchmarks.plots import FIGURES, save_png
from benchmarks.retrieval.problems import Source, fashion

CALIBRATED = 2_000
SHOWN, N_OOD, K = slice(3_000, 3_005), 2, 6
NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "boot")  # fmt: skip


def run(options: Namespace) -> None:
    """Five queries of the classes of the gallery, two of other images."""
    problem = fashion(Source(options.data, Path()))
    (gallery, labels), (pool, pool_labels) = problem.gallery, problem.pool
    index = problem.embedder.index(gallery, [NAMES[y] for y in labels], progress=False)
    index.calibrate(pool[:CALIBRATED], [NAMES[y] for y in pool_labels[:CALIBRATED]])
    queries = torch.cat([pool[SHOWN], problem.ood["kmnist"][:N_OOD]])
    figure = index.search(queries, K).figure(queries, gallery)
    save_png(figure, (options.output or FIGURES) / "retrieval-neighbours.png")
