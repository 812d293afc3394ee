"""Heads with and without variances on the same features: ``python -m benchmarks image-text``.

Every method has the same heads, pairs, order, epochs and learning rate. Settings were chosen on the
validation drawings; the test drawings, of other base emoji, are asked once.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.image_text.emoji import OOD_SETS, EmojiProblem, load_problem
from benchmarks.image_text.questions import both_ways, generality, inclusion, out_of_distribution
from benchmarks.records import (
    RESULTS,
    Store,
    folder_of,
    markdown,
    read_record,
    thousandths,
    write_record,
)
from laplace_metric.image_text import (
    CLIP,
    ImageTextEmbedder,
    Objective,
    PCMEPlusPlus,
    ProLIP,
    SigLIP,
)
from laplace_metric.models import Precomputed

METHODS: dict[str, Callable[[], Objective]] = {
    "clip": CLIP,
    "siglip": SigLIP,
    "pcme++": PCMEPlusPlus,
    "prolip": ProLIP,
    "prolip, entailment and contrast": lambda: ProLIP(entailment=50.0, contrast=5.0),
}
DIM, DROPOUT, LEARNING_RATE = 64, 0.3, 3e-3
SEEDS = (0, 1, 2)
BUDGETS: dict[str, tuple[int, int | None]] = {"small": (30, None), "smoke": (1, 250)}
"""Epochs, and emoji of each split."""
RECORD = "image_text"


def measured(problem: EmojiProblem, method: str, seed: int, epochs: int) -> dict[str, Any]:
    """One training, and everything that is asked of it."""
    pairs, trained = problem.training
    objective = METHODS[method]()
    encoders = Precomputed(), Precomputed()
    embedder = ImageTextEmbedder(*encoders, dim=DIM, dropout=DROPOUT, objective=objective)
    start = time.perf_counter()
    rate = LEARNING_RATE
    embedder.fit(pairs, epochs=epochs, learning_rate=rate, generator=seed, progress=False)
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
        row[part] = {
            **both_ways(embedder, problem, asked),
            **inclusion(embedder, problem, asked, seed),
        }
    if objective.logit_scale() is not None:
        row["ood"] = out_of_distribution(embedder, problem)
    if objective.probabilistic:
        row["trained keywords"] = generality(embedder, problem, trained, seed)
        row["new keywords"] = generality(embedder, problem, sorted(problem.new), seed)
    return row


def run(options: Namespace) -> None:
    """Every method and seed; finished ones are kept in the cache."""
    epochs, limit = BUDGETS[options.size]
    problem = load_problem(options.cache, options.data, limit)
    seeds = options.seeds or (SEEDS if options.size == "small" else SEEDS[:1])
    store, rows = Store(options.cache / f"image-text-{options.size}"), []
    for seed in seeds:
        for method in METHODS:
            if not store.has(method, seed):
                store.write(measured(problem, method, seed, epochs), method, seed)
            rows.append(store.read(method, seed))
            rows[-1].pop("environment")
            print(method, seed, {k: round(v, 3) for k, v in rows[-1]["test"].items()}, flush=True)
    folder = folder_of(options)
    print(write_record(RECORD, {"rows": rows}, folder).name)
    for table in TABLES.values():
        print(table(folder), end="\n\n")


def _cells(rows: list[dict[str, Any]], method: str, *path: str) -> str:
    """Mean and standard deviation over seeds, or nothing where a method has no such number."""
    values = []
    for row in rows:
        value: Any = row if row["method"] == method else {}
        for key in path:
            value = value.get(key, {})
        values += [value] if isinstance(value, float) and isfinite(value) else []
    if not values:
        return ""
    spread = f" ± {thousandths(stdev(values))}" if len(values) > 1 else ""
    return f"{thousandths(fmean(values))}{spread}"


def _table(columns: dict[str, tuple[str, ...]], folder: Path) -> str:
    rows = read_record(RECORD, folder)["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [[m, *(_cells(rows, m, *path) for path in columns.values())] for m in methods]
    return markdown(["method", *columns], [line for line in lines if any(line[1:])])


def retrieval_table(folder: Path = RESULTS) -> str:
    """Test drawings, both ways."""
    ways = ("image to text", "text to image")
    names = [f"{way} {name}" for way in ways for name in ("r@1", "r@5", "map@r")]
    columns = {name: ("test", name) for name in names}
    return _table({**columns, "seconds": ("seconds",)}, folder)


def generality_table(folder: Path = RESULTS) -> str:
    """Spearman of ambiguity and log number of drawings."""
    names = ("spearman", "shuffled", "without length", "epistemic")
    parts = ("trained keywords", "new keywords")
    return _table({f"{part}: {name}": (part, name) for part in parts for name in names}, folder)


def inclusion_table(folder: Path = RESULTS) -> str:
    """AUROC of own against random and sibling keywords, on test drawings."""
    names = [f"{score}, {other}" for other in ("random", "sibling")
             for score in ("inc", "H", "csd", "cosine")]  # fmt: skip
    names += ["H > 0, own", "H > 0, random"]
    return _table({name: ("test", name) for name in names}, folder)


def ood_table(folder: Path = RESULTS) -> str:
    """AUROC of what is no emoji."""
    names = [f"{name} {number}" for name in OOD_SETS for number in ("epistemic", "ambiguity")]
    return _table({name: ("ood", name) for name in names}, folder)


TABLES = {
    "image-text-ood": ood_table,
    "image-text-retrieval": retrieval_table,
    "image-text-generality": generality_table,
    "image-text-inclusion": inclusion_table,
}
