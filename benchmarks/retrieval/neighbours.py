"""Queries with their neighbours: ``python -m benchmarks.retrieval.neighbours --data DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.report.figures import FIGURES, save
from benchmarks.retrieval.problems import Source, fashion

CALIBRATED = 2_000
SHOWN, STRANGERS, K = slice(3_000, 3_005), 2, 6
NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "boot")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--output", type=Path, default=FIGURES, help="folder of the picture")
    options = parser.parse_args()
    problem = fashion(Source(options.data, Path()))
    (gallery, labels), (pool, pool_labels) = problem.gallery, problem.pool
    index = problem.embedder.index(gallery, [NAMES[y] for y in labels], progress=False)
    index.calibrate(pool[:CALIBRATED], [NAMES[y] for y in pool_labels[:CALIBRATED]])
    queries = torch.cat([pool[SHOWN], problem.strangers["kmnist"][:STRANGERS]])
    figure = index.search(queries, K).figure(queries, gallery)
    save(figure, options.output / "retrieval-neighbours.png")


if __name__ == "__main__":
    main()
