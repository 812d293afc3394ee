"""What one does with the embeddings, measured: a piece of ``python -m benchmarks image-text``.

Heads are trained on emoji keywords (and on WordNet) with the settings of ``measure``. HierarCaps
and CIFAR-10 are never trained on and chose nothing: for heads of emoji a far transfer.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from benchmarks.image_text.classes import ClassProblem, cifar10, emoji_subgroups, told_apart
from benchmarks.image_text.emoji import EmojiProblem, load_problem
from benchmarks.image_text.hierarcaps import (
    HierarCaps,
    level_means,
    load_hierarcaps,
    ordered,
    ways,
)
from benchmarks.image_text.measure import DIM, DROPOUT, LEARNING_RATE, METHODS, SEEDS
from benchmarks.image_text.questions import rank_correlation
from benchmarks.image_text.uses_tables import RECORD, TABLES
from benchmarks.image_text.wrong_captions import found, plant
from benchmarks.records import Store, folder_of, write_record
from laplace_metric.image_text import ImageTextEmbedder
from laplace_metric.models import Precomputed

BUDGETS: dict[str, tuple[int, int, int | None]] = {"small": (30, 10, None), "smoke": (1, 1, 250)}
"""Epochs, epochs of each fold, and images of each split."""
FINDERS = ("siglip", "prolip")


def transferred(
    problem: EmojiProblem,
    photographs: HierarCaps,
    classes: dict[str, ClassProblem],
    method: str,
    seed: int,
    epochs: int,
) -> dict[str, Any]:
    """One training on emoji, and everything that is asked of it."""
    settings = {"dim": DIM, "dropout": DROPOUT, "structure": "diag"}  # no posterior is read
    encoders = Precomputed(), Precomputed()
    embedder = ImageTextEmbedder(*encoders, objective=METHODS[method](), **settings)
    rates = {"epochs": epochs, "learning_rate": LEARNING_RATE}
    embedder.fit(problem.training[0], **rates, generator=seed, progress=False)
    image, texts = embedder.embed_image(photographs.images), embedder.embed_text(photographs.texts)
    empty = embedder.embed_text(photographs.empty)
    row: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "hierarcaps": ways(image, texts, empty, photographs.own, seed),
        "to the empty text": ordered((texts.mean @ empty.mean.mT)[:, 0], photographs.own, seed),
        **{name: told_apart(embedder, asked, seed) for name, asked in classes.items()},
    }
    if embedder.objective.probabilistic:
        row["levels"] = {
            **ordered(texts.uncertainty, photographs.own, seed),
            "words": rank_correlation(texts.uncertainty.numpy(), photographs.words.numpy()),
        }
        row["level means"] = level_means(texts.uncertainty, photographs.own)
    return row


def _kept(store: Store, compute: Callable[[], dict[str, Any]], *words: object) -> dict[str, Any]:
    """A finished piece, from the store where it has it."""
    if not store.has(*words):
        store.write(compute(), *words)
    row = store.read(*words)
    row.pop("environment")
    print(*words, flush=True)
    return row


def run(options: Namespace) -> None:
    """Every method and seed; finished ones are kept in the cache."""
    epochs, fold_epochs, limit = BUDGETS[options.size]
    cache, data = options.cache, options.data
    problem = load_problem(cache, data, limit)
    photographs = load_hierarcaps(cache, data, limit)
    classes = {
        "subgroups": emoji_subgroups(problem, cache, data),
        "cifar10": cifar10(cache, data, limit),
    }
    seeds = options.seeds or (SEEDS if options.size == "small" else SEEDS[:1])
    store = Store(cache / f"image-text-uses-{options.size}")
    how = {"dim": DIM, "dropout": DROPOUT, "learning_rate": LEARNING_RATE, "epochs": fold_epochs}
    rows, wrong = [], []
    for seed in seeds:
        for method in METHODS:
            asked = (problem, photographs, classes, method, seed, epochs)
            rows.append(_kept(store, lambda asked=asked: transferred(*asked), method, seed))
        for method in FINDERS:
            planted = lambda m=method, s=seed: {  # noqa: E731
                "method": m, "seed": s, "found": found(plant(problem, s), METHODS[m], s, how),
            }  # fmt: skip
            wrong.append(_kept(store, planted, "wrong", method, seed))
    words = ordered(-photographs.words.double(), photographs.own)
    content = {"rows": rows, "wrong": wrong, "words": words}
    folder = folder_of(options)
    print(write_record(RECORD, content, folder).name)
    for table in TABLES.values():
        print(table(folder), end="\n\n")
