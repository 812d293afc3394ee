"""Heads with and without variances on the same features: ``python -m benchmarks image-text``.

Every method has the same heads, pairs, order, epochs and learning rate. Settings were chosen on the
validation drawings, none on the test drawings, which are of other base emoji. HierarCaps and
CIFAR-10 are never trained on and chose nothing: for heads of emoji a far transfer.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.image_text.classes import ClassProblem, cifar10, emoji_subgroups, told_apart
from benchmarks.image_text.emoji import EmojiProblem, load_problem
from benchmarks.image_text.hierarcaps import HierarCaps, load_hierarcaps, ways
from benchmarks.image_text.questions import (
    ambiguities,
    both_ways,
    count_regression,
    generality,
)
from benchmarks.image_text.tables import RECORD, REGRESSION, TABLES
from benchmarks.records import Store, folder_of, write_record
from laplace_metric.image_text import (
    CLIP,
    ImageTextEmbedder,
    Objective,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
)
from laplace_metric.image_text._head import HeadOutput
from laplace_metric.models import Precomputed

OURS, PRINTED = "prolip-regions", "prolip, as printed"
SHARE = 0.125


class PrintedProLIP(ProLIP):
    """``ProLIP`` with masked inputs (eq 6): an eighth of the batch, weight 1e-3 (appendix B.1)."""

    def __init__(self) -> None:
        super().__init__(masked=1e-3)

    def masked_loss(self, full: HeadOutput, part: HeadOutput) -> Tensor:
        """Over a random eighth of the inputs of a batch."""
        n = len(full.raw)
        rows = torch.randperm(n)[: max(1, round(SHARE * n))].to(full.raw.device)
        chosen = (HeadOutput(*(x[rows] for x in output)) for output in (full, part))
        return super().masked_loss(*chosen)


METHODS: dict[str, Callable[[], Objective]] = {
    "clip": CLIP,
    "siglip": SigLIP,
    "pcme++": PCMEPlusPlus,
    "prolip": ProLIP,
    PRINTED: PrintedProLIP,
    OURS: ProLIPRegions,
}
DIM, DROPOUT, LEARNING_RATE = 64, 0.3, 3e-3
SEEDS = (0, 1, 2)
BUDGETS: dict[str, tuple[int, int | None]] = {"small": (30, None), "smoke": (1, 250)}
"""Epochs, and emoji of each split."""


def measured(
    problem: EmojiProblem,
    method: str,
    seed: int,
    epochs: int,
    photographs: HierarCaps | None = None,
    classes: Mapping[str, ClassProblem] = {},
) -> dict[str, Any]:
    """One training, and everything that is asked of it."""
    pairs, trained = problem.training
    objective = METHODS[method]()
    encoders = Precomputed(), Precomputed()
    embedder = ImageTextEmbedder(*encoders, dim=DIM, dropout=DROPOUT, objective=objective)
    start = time.perf_counter()
    rate = LEARNING_RATE
    how: dict[str, Any] = {"epochs": epochs, "learning_rate": rate, "seed": seed}
    if objective.masked:
        images, texts = problem.masked
        how["masked"] = (images, texts if method == PRINTED else None)
    embedder.fit(pairs, progress=False, **how)
    seconds = time.perf_counter() - start
    fitted = embedder.fitted_
    row: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "epochs": epochs,
        "seconds": seconds,
        "pairs": len(pairs),
        "losses": fitted.losses,
        "spreads": {side: asdict(rows[-1]) for side, rows in fitted.spreads.items()},
    }
    for part in ("validation", "test"):
        asked = problem.parts[part]
        row[part] = both_ways(embedder, problem, asked)
    if objective.probabilistic:
        row["trained keywords"] = generality(embedder, problem, trained, seed)
        row["new keywords"] = generality(embedder, problem, sorted(problem.new), seed)
    if method == OURS and seed == SEEDS[0]:
        row["drawings"] = ambiguities(embedder, problem.parts["test"])
    if photographs is not None:
        image = embedder.embed_image(photographs.images)
        own, root = (embedder.embed_text(x) for x in (photographs.texts, photographs.empty))
        row["hierarcaps"] = ways(image, own, root, photographs.own, seed)
    return row | {name: told_apart(embedder, asked, seed) for name, asked in classes.items()}


def run(options: Namespace) -> None:
    """Every method and seed; finished ones are kept in the cache."""
    epochs, limit = BUDGETS[options.size]
    files = options.cache / "encoded", options.data
    problem, photographs = load_problem(*files, limit), load_hierarcaps(*files, limit)
    classes = {
        "subgroups": emoji_subgroups(problem, *files),
        "cifar10": cifar10(*files, limit),
    }
    seeds = options.seeds or (SEEDS if options.size == "small" else SEEDS[:1])
    store, rows = Store(options.cache / f"image-text-{options.size}"), []
    for seed in seeds:
        for method in METHODS:
            if not store.has(method, seed):
                store.write(
                    measured(problem, method, seed, epochs, photographs, classes), method, seed
                )
            rows.append(store.read(method, seed))
            rows[-1].pop("environment")
            print(method, seed, {k: round(v, 3) for k, v in rows[-1]["test"].items()}, flush=True)
    folder = folder_of(options)
    regression = {"method": REGRESSION, **count_regression(problem, problem.training[1])}
    print(write_record(RECORD, {"rows": rows, "regression": regression}, folder).name)
    for table in TABLES.values():
        print(table(folder), end="\n\n")
