"""A fifth of the emoji exchange their keywords, and are looked for.

All drawings are one data set, cross-fitted; the AUROC is that of the test drawings, apart from the
one of the others, on which the number of epochs and the choice of scores rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import captions, load
from benchmarks.image_text.emoji import PARTS, VALIDATION_SHARE, EmojiPart, EmojiProblem, share_of
from benchmarks.image_text.measure import DIM, DROPOUT, LEARNING_RATE
from benchmarks.image_text.questions import Row
from laplace_metric.errors import InputError
from laplace_metric.evaluation import auroc
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    Objective,
    noisy_pairs,
)
from laplace_metric.models import Precomputed

SHARE, FOLDS, ROUNDS = 0.2, 3, 1000


@dataclass(frozen=True)
class Planted:
    """A data set with wrong captions.

    Parameters
    ----------
    pairs : ImageTextPairs
        Of features.
    wrong : Tensor [N], bool
    test : Tensor [N], bool
        Drawings that chose nothing.
    base : Tensor [N]
        The base emoji: a drawing in another skin tone has the same.
    """

    pairs: ImageTextPairs
    wrong: Tensor
    test: Tensor
    base: Tensor


def part_of(base: int) -> str:
    """Of a base emoji of the training split, as ``load_problem`` has it."""
    return "validation" if share_of(f"base {base}") < VALIDATION_SHARE else "train"


def bases(problem: EmojiProblem, data: str | None, limit: int | None) -> Tensor:
    """The base emoji of all drawings, in the order of ``plant``."""
    own: dict[str, list[int]] = {name: [] for name in PARTS}
    for split in ("train", "test"):
        numbers = load("emoji", split, data, limit, size=8).extras["base"].tolist()
        texts = captions("emoji", split, data, limit)
        for base, keywords in zip(numbers, texts, strict=True):
            if len(keywords) > 1:  # the last is the name
                own[split if split == "test" else part_of(base)].append(base)
    assert all(len(own[name]) == len(problem.parts[name]) for name in PARTS)
    return torch.tensor([base for name in PARTS for base in own[name]])


def plant(problem: EmojiProblem, base: Tensor, seed: int) -> Planted:
    """Let a fifth of the drawings exchange their keywords, so that none keeps one of its own.

    Every keyword names as many drawings as before, so that how rare it is says nothing.
    """
    parts = [problem.parts[name] for name in PARTS]
    keywords = [own for part in parts for own in part.keywords]
    n = len(keywords)
    g = np.random.default_rng(seed)
    rows = np.sort(g.permutation(n)[: round(SHARE * n)])
    donors = _exchanged([frozenset(keywords[row]) for row in rows], g)
    given = list(keywords)
    for row, donor in zip(rows, donors, strict=True):
        given[row] = keywords[rows[donor]]
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[torch.as_tensor(rows)] = True
    features = torch.cat([part.features for part in parts])
    groups = torch.cat([part.subgroup for part in parts])
    pairs, _ = problem.pairs(EmojiPart(features, tuple(given), groups, torch.arange(n)))
    test = torch.arange(n) >= n - len(parts[-1])
    return Planted(pairs, wrong, test, base)


def _exchanged(own: list[frozenset[str]], g: np.random.Generator) -> np.ndarray:
    """A permutation after which no set meets the one at its old place."""
    donors = g.permutation(len(own))
    for _ in range(ROUNDS):
        clashes = [k for k, donor in enumerate(donors) if own[k] & own[donor]]
        if not clashes:
            return donors
        for k in clashes:
            other = int(g.integers(len(own)))
            donors[[k, other]] = donors[[other, k]]
    raise InputError(f"{len(clashes)} drawings share keywords with every other: plant fewer.")


def trained(
    pairs: ImageTextPairs,
    objective: Objective,
    seed: int,
    epochs: int,
    masked: tuple[Tensor, Tensor] | None = None,
) -> ImageTextEmbedder:
    """Heads with the settings of ``measure``."""
    embedder = ImageTextEmbedder(
        Precomputed(), Precomputed(), DIM, objective=objective, dropout=DROPOUT
    )
    return embedder.fit(
        pairs, epochs=epochs, learning_rate=LEARNING_RATE, seed=seed, masked=masked,
        progress=False,
    )  # fmt: skip


def found(planted: Planted, objective: Callable[[], Objective], seed: int, epochs: int) -> Row:
    """AUROC of every score by drawing, of test drawings and of the others."""

    def fit(pairs: ImageTextPairs) -> ImageTextEmbedder:
        return trained(pairs, objective(), seed, epochs)

    row: Row = {}
    for kind, groups in (("", None), (", by base", planted.base)):
        scores = noisy_pairs(fit, planted.pairs, folds=FOLDS, groups=groups, seed=seed)
        for name, score in scores.by_image().items():
            row |= _aurocs(f"{name}{kind}", score, planted)
    seen = fit(planted.pairs)  # and by a model that has learnt them
    image, text = seen.embed_image(planted.pairs.images), seen.embed_text(planted.pairs.texts)
    i, t = planted.pairs.pairs.unbind(1)
    s = -seen.similarity(image, text)[i, t]
    by_image = torch.zeros(len(image)).index_add(0, i, s) / i.bincount()
    return row | _aurocs("match, in sample", by_image, planted)


def _aurocs(name: str, score: Tensor, planted: Planted) -> Row:
    parts = {"test": planted.test, "development": ~planted.test}
    return {
        f"{name}, {part}": auroc(score[rows & ~planted.wrong], score[rows & planted.wrong])
        for part, rows in parts.items()
    }
