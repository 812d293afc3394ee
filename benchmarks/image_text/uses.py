"""What one does with the embeddings, measured: a piece of ``python -m benchmarks image-text``.

Heads are trained on emoji keywords (and on WordNet) with the settings of ``measure``. HierarCaps
and CIFAR-10 are never trained on and chose nothing: for heads of emoji a far transfer.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.datasets import captions, load
from benchmarks.image_text.classes import ClassProblem, cifar10, emoji_subgroups, told_apart
from benchmarks.image_text.emoji import EmojiProblem, load_problem
from benchmarks.image_text.hierarcaps import (
    HierarCaps,
    feature_ways,
    level_means,
    load_hierarcaps,
    ordered,
    ways,
)
from benchmarks.image_text.measure import METHODS, OURS, PRINTED, SEEDS
from benchmarks.image_text.questions import rank_correlation
from benchmarks.image_text.terms import (
    ENTAILED,
    KINDS,
    term_regression,
    trained_on_terms,
    with_entailment,
)
from benchmarks.image_text.uses_tables import (
    RECORD,
    TABLES,
    WORDNET_RECORD,
    WORDNET_TABLES,
    Table,
)
from benchmarks.image_text.wordnet import encoded_list, load_wordnet
from benchmarks.image_text.wrong_captions import bases, found, plant, trained
from benchmarks.records import Store, folder_of, write_record
from laplace_metric.errors import InputError
from laplace_metric.image_text import ImageTextPairs, Objective

BUDGETS: dict[str, tuple[int, int, int, int | None]] = {
    "small": (30, 10, 8, None),
    "smoke": (1, 1, 1, 250),
}
"""Epochs on emoji, of each fold and on WordNet; images of each split."""
FINDERS = ("siglip", "prolip")
TRAINED: dict[str, Callable[[], Objective]] = {
    **{name: method for name, method in METHODS.items() if not name.endswith(", masked")},
    ENTAILED: with_entailment,
}
"""All but ours that need masked inputs."""
HIERARCHY = "prolip-regions, names and groups"
"""Trained with the group, subgroup and name of each drawing as further texts."""


def hierarchy_pairs(
    problem: EmojiProblem, cache: Path, data: str | None, limit: int | None
) -> ImageTextPairs:
    """Pairs of training drawings with their group, subgroup, keywords and name."""
    part = problem.trained_part
    names = captions("emoji", "train", data, limit)
    folders = load("emoji", "train", data, limit, size=8).class_names
    above = [folder.replace("-", " ").split(" > ") for folder in folders]
    texts = [
        [*above[group], *keywords, names[row][-1]]
        for row, group, keywords in zip(
            part.rows.tolist(), part.subgroup.tolist(), part.keywords, strict=True
        )
    ]
    pairs = ImageTextPairs.of(part.features, texts)
    features = encoded_list(cache, "emoji hierarchy", list(pairs.texts))
    return ImageTextPairs(part.features, features, pairs.pairs)


def transferred(
    problem: EmojiProblem,
    photographs: HierarCaps,
    classes: dict[str, ClassProblem],
    method: str,
    seed: int,
    epochs: int,
    pairs: ImageTextPairs,
) -> dict[str, Any]:
    """One training on pairs of emoji, and everything that is asked of it."""
    objective = TRAINED[OURS if method == HIERARCHY else method]()
    masked = problem.masked if method == PRINTED else None
    embedder = trained(pairs, objective, seed, epochs, masked)
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


def _wrong(
    problem: EmojiProblem, base: Tensor, method: str, seed: int, epochs: int
) -> dict[str, Any]:
    scores = found(plant(problem, base, seed), METHODS[method], seed, epochs)
    return {"method": method, "seed": seed, "found": scores}


def _kept(store: Store, compute: Callable[[], dict[str, Any]], *words: object) -> dict[str, Any]:
    """A finished piece, from the store where it has it."""
    if not store.has(*words):
        store.write(compute(), *words)
    row = store.read(*words)
    row.pop("environment")
    print(*words, flush=True)
    return row


def _seeds(options: Namespace) -> list[int]:
    return options.seeds or list(SEEDS if options.size == "small" else SEEDS[:1])


def run(options: Namespace) -> None:
    """Every method and seed trained on emoji; finished ones are kept in the cache."""
    epochs, fold_epochs, _, limit = BUDGETS[options.size]
    cache, data = options.cache, options.data
    problem = load_problem(cache, data, limit)
    photographs = load_hierarcaps(cache, data, limit)
    classes = {
        "subgroups": emoji_subgroups(problem, cache, data),
        "cifar10": cifar10(cache, data, limit),
    }
    store = Store(cache / f"image-text-uses-{options.size}")
    base = bases(problem, data, limit)
    hierarchy = hierarchy_pairs(problem, cache, data, limit)
    rows, wrong = [], []
    for seed in _seeds(options):
        for method in (*TRAINED, HIERARCHY):
            pairs = hierarchy if method == HIERARCHY else problem.training[0]
            asked = (problem, photographs, classes, method, seed, epochs, pairs)
            rows.append(_kept(store, partial(transferred, *asked), method, seed))
        for method in FINDERS:
            compute = partial(_wrong, problem, base, method, seed, fold_epochs)
            wrong.append(_kept(store, compute, "wrong", method, seed))
    words = ordered(-photographs.words.double(), photographs.own)
    _write(RECORD, {"rows": rows, "wrong": wrong, "words": words}, TABLES, options)


def run_wordnet(options: Namespace) -> None:
    """Every kind and seed trained on WordNet, where there is one."""
    _, _, epochs, limit = BUDGETS[options.size]
    try:
        problem = load_wordnet(options.cache, limit)
    except InputError as error:
        print(f"left out: {error}")
        return
    photographs = load_hierarcaps(options.cache, options.data, limit)
    store, rows = Store(options.cache / f"image-text-wordnet-{options.size}"), []
    for seed in _seeds(options):
        for kind in KINDS:
            asked = (problem, photographs, kind, seed, epochs)
            rows.append(_kept(store, partial(trained_on_terms, *asked), kind, seed))
    regression = {"method": "ridge regression", **term_regression(problem, photographs)}
    content = {"rows": rows, "regression": regression, "features": feature_ways(photographs)}
    _write(WORDNET_RECORD, content, WORDNET_TABLES, options)


def _write(
    name: str,
    content: dict[str, Any],
    tables: dict[str, Table],
    options: Namespace,
) -> None:
    folder = folder_of(options)
    print(write_record(name, content, folder).name)
    for table in tables.values():
        print(table(folder), end="\n\n")
