"""Is what a text finds a match, and what an image finds? ``... image-text --pieces matching``.

Drawings that the fit has not seen, as items and as queries:

    known text to image    drawings of half of the test bases, asked by the keywords of the training
                           pairs; those that name no drawing there have no match
    new text to image      the same drawings, asked by keywords that are in no training pair
    image to text          every keyword, asked by one test drawing a base emoji: skin tones are
                           near copies, and would stand on both sides of a split

Half of the queries calibrates, at random, the other half is asked; beside the match probability the
probability of the training, ``sigmoid(a s + b)``, which nothing calibrated.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.image_text.emoji import EmojiProblem, load_problem
from benchmarks.image_text.matching_tables import MATCHING_TABLES, RECORD
from benchmarks.image_text.measure import BUDGETS, DIM, DROPOUT, LEARNING_RATE, SEEDS
from benchmarks.records import Store, folder_of, write_record
from benchmarks.retrieval.split import drawn
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.errors import InputError
from laplace_metric.evaluation import auroc, expected_calibration_error
from laplace_metric.image_text import ImageTextEmbedder
from laplace_metric.models import Precomputed
from laplace_metric.search import Index

K, DEPTH, SPLITS = 10, 200, 50
PRECISIONS = (0.5, 0.7, 0.9)
Array = npt.NDArray[Any]
ALPHA_SETS, ALPHA_UNKNOWN = 0.2, 0.05
PHOTOGRAPHS = "cifar10"
Row = dict[str, float | None]


@dataclass(frozen=True)
class Asked:
    """What Q queries found.

    Parameters
    ----------
    judged : LabelledHits
    raw : Tensor [Q, depth]
        ``sigmoid(a s + b)`` of the pairs, as it was trained.
    n_items : int
    ood : SearchHits or None
        What photographs found.
    """

    judged: LabelledHits
    raw: Array
    n_items: int
    ood: SearchHits | None = None


def bases_of(problem: EmojiProblem, data: str | None, limit: int | None) -> list[int]:
    """Base emoji of each drawing of the test part."""
    bases = load("emoji", "test", data, limit, size=8).extras["base"]
    chosen: list[int] = bases[problem.parts["test"].rows].tolist()
    return chosen


def unseen_keywords(problem: EmojiProblem) -> list[str]:
    """Keywords of the other parts that are in no training pair."""
    _, trained = problem.training
    parts = (problem.parts[name] for name in ("validation", "test"))
    return sorted({k for part in parts for own in part.keywords for k in own} - set(trained))


def text_to_image(
    embedder: ImageTextEmbedder,
    problem: EmojiProblem,
    bases: Sequence[int],
    words: Sequence[str],
    seed: int,
) -> Asked:
    """Keywords ask the drawings of half of the test bases."""
    g = torch.Generator().manual_seed(seed)
    every = sorted(set(bases))
    chosen = {every[i] for i in torch.randperm(len(every), generator=g)[: len(every) // 2].tolist()}
    rows = [row for row, base in enumerate(bases) if base in chosen]
    part = problem.parts["test"][rows]
    names: dict[str, list[int]] = {word: [] for word in words}
    for row, own in enumerate(part.keywords):
        for word in own:
            if word in names:
                names[word].append(row)
    index = embedder.index_images(part.features, progress=False)
    texts = problem.texts(words)
    judged = index.labelled_hits(texts, k=DEPTH, matches=list(names.values()))
    logit = embedder.match_logit(embedder.embed_text(texts), embedder.embed_image(part.features))
    return Asked(judged, _raw(logit, judged), len(index))


def image_to_text(
    embedder: ImageTextEmbedder, problem: EmojiProblem, bases: Sequence[int]
) -> Asked:
    """One test drawing a base asks all keywords."""
    part = problem.parts["test"][list({base: row for row, base in enumerate(bases)}.values())]
    words = sorted(problem.images)
    place, texts = {word: row for row, word in enumerate(words)}, problem.texts(words)
    index = embedder.index_texts(texts, progress=False)
    matches = [[place[word] for word in own] for own in part.keywords]
    judged = index.labelled_hits(part.features, k=DEPTH, matches=matches)
    logit = embedder.match_logit(embedder.embed_image(part.features), embedder.embed_text(texts))
    ood = _found(index, problem.ood[PHOTOGRAPHS])
    return Asked(judged, _raw(logit, judged), len(index), ood)


def _found(index: Index, inputs: Tensor) -> SearchHits:
    nobody: list[list[int]] = [[] for _ in inputs]
    return index.labelled_hits(inputs, k=DEPTH, matches=nobody).hits


def _raw(logit: Tensor, judged: LabelledHits) -> Array:
    raw: Array = logit.gather(1, torch.from_numpy(judged.hits.positions)).sigmoid().double().numpy()
    return raw


def asked_once(asked: Asked, seed: int) -> Row:
    """Every number of one split; None where a promise could not be made."""
    g = torch.Generator().manual_seed(seed)
    ours, theirs = np.array_split(drawn(len(asked.judged), g), 2)
    test, calibration = (
        asked.judged.take(theirs),
        calibrated(asked.judged.take(ours), K, asked.n_items, drawn(len(ours), g)),
    )
    assessment = calibration.assess(test.hits)
    p, match, known = assessment.match_probability, test.match, test.known
    raw, unknown = asked.raw[theirs], assessment.p_value <= ALPHA_UNKNOWN
    right = match[:, 0]
    row: Row = {
        "queries": float(len(right)),
        "with a match": float(known.mean()),
        "right": float(right.mean()),
        **_calibration("match probability", p, match, g),
        **_calibration("raw", raw, match, g),
        "cosine auroc": _auroc(-test.hits.distance[:, 0], right),
        "called unknown, with a match": float(unknown[known].mean()),
    }
    if not bool(known.all()):
        row["called unknown, without a match"] = float(unknown[~known].mean())
    if asked.ood is not None:
        strangers = calibration.assess(asked.ood)
        called = strangers.p_value <= ALPHA_UNKNOWN
        row["called unknown, photographs"] = float(called.mean())
        row["photographs p auroc"] = auroc(-assessment.p_value, -strangers.p_value)
    for target in PRECISIONS:
        row |= _promise(calibration, target, p[:, 0], right)
    return row | _sets(calibration, assessment.logit, match, known)


def _calibration(name: str, p: Array, match: Array, g: torch.Generator) -> Row:
    """Of the nearest items and of K pairs a query; and what a perfect probability would get."""
    nearest, right, pairs = p[:, 0], match[:, 0], p[:, :K].flatten()
    draws = torch.rand(nearest.shape, generator=g, dtype=torch.float64).numpy() < nearest
    return {
        f"{name} ece": expected_calibration_error(nearest, right).ece,
        f"{name} ece of draws": expected_calibration_error(nearest, draws).ece,
        f"{name} ece, {K} pairs": expected_calibration_error(pairs, match[:, :K].flatten()).ece,
        f"{name} brier": float(np.square(nearest - right).mean()),
        f"{name} auroc": _auroc(nearest, right),
    }


def _auroc(score: Array, right: Array) -> float | None:
    if bool(right.all()) or not bool(right.any()):
        return None
    return auroc(-score[right], -score[~right])


def _promise(calibration: Calibration, target: float, p: Array, right: Array) -> Row:
    name = f"precision {target:g}"
    try:
        accepted = p >= calibration.guarantee(precision=target, of="match", alpha=None).value
    except InputError:
        return {f"{name} made": 0.0, f"{name} kept": None, f"{name} answered": None}
    obtained = float(right[accepted].mean()) if bool(accepted.any()) else 1.0
    kept, answered = float(obtained >= target), float(accepted.mean())
    return {f"{name} made": 1.0, f"{name} kept": kept, f"{name} answered": answered}


def _sets(calibration: Calibration, logit: Array, match: Array, known: Array) -> Row:
    name = f"sets {1 - ALPHA_SETS:g}"
    try:
        members = calibration.members(logit, ALPHA_SETS)
    except InputError:
        return {f"{name} made": 0.0, f"{name} coverage": None, f"{name} size": None}
    held: Array = np.any(members & match, axis=1)
    covered, size = held[known], members.sum(1)
    means = float(covered.mean()), float(size.mean())
    return {f"{name} made": 1.0, f"{name} coverage": means[0], f"{name} size": means[1]}


def matching(
    problem: EmojiProblem, bases: Sequence[int], seed: int, epochs: int, splits: int
) -> dict[str, dict[str, float]]:
    """Means over splits, of both ways; numbers that no split has are left out."""
    embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=DIM, dropout=DROPOUT)
    how: dict[str, Any] = {"learning_rate": LEARNING_RATE, "seed": seed, "progress": False}
    embedder.fit(problem.training[0], epochs=epochs, **how)
    words = {"known": problem.training[1], "new": unseen_keywords(problem)}
    ways = {
        f"{kind} text to image": text_to_image(embedder, problem, bases, some, seed)
        for kind, some in words.items()
    }
    ways["image to text"] = image_to_text(embedder, problem, bases)
    return {way: _means([asked_once(own, s) for s in range(splits)]) for way, own in ways.items()}


def _means(rows: list[Row]) -> dict[str, float]:
    """Of the rows that have a number."""
    named = {name: [v for row in rows if (v := row[name]) is not None] for name in rows[0]}
    return {name: fmean(values) for name, values in named.items() if values}


def run(options: Namespace) -> None:
    """Every seed; finished ones are kept in the cache."""
    epochs, limit = BUDGETS[options.size]
    problem = load_problem(options.cache, options.data, limit)
    bases = bases_of(problem, options.data, limit)
    full = options.size == "small"
    seeds, splits = options.seeds or (SEEDS if full else SEEDS[:1]), SPLITS if full else 2
    store, rows = Store(options.cache / f"image-text-matching-{options.size}"), []
    for seed in seeds:
        if not store.has("prolip", seed):
            store.write(matching(problem, bases, seed, epochs, splits), "prolip", seed)
        rows.append({"seed": seed, **store.read("prolip", seed)})
        rows[-1].pop("environment")
    print(write_record(RECORD, {"rows": rows, "splits": splits}, folder_of(options)).name)
    for table in MATCHING_TABLES.values():
        print(table(folder_of(options)), end="\n\n")
