"""A fifth of the emoji gets the keywords of another drawing, and is looked for.

All drawings are one data set, cross-fitted; the AUROC is that of the test drawings, apart from the
one of the others, on which the number of epochs and the choice of scores rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_text.emoji import EmojiPart, EmojiProblem
from benchmarks.image_text.questions import Row
from laplace_metric.evaluation import auroc
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs, Objective
from laplace_metric.image_text.uses import noisy_pairs
from laplace_metric.models import Precomputed

SHARE, FOLDS = 0.2, 3


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
    """

    pairs: ImageTextPairs
    wrong: Tensor
    test: Tensor


def plant(problem: EmojiProblem, seed: int) -> Planted:
    """Give a fifth of the drawings all keywords of another one that shares none with it."""
    parts = [problem.parts[name] for name in ("train", "validation", "test")]
    keywords = [own for part in parts for own in part.keywords]
    n = len(keywords)
    g = np.random.default_rng(seed)
    wrong = np.zeros(n, dtype=bool)
    wrong[g.permutation(n)[: round(SHARE * n)]] = True
    given = list(keywords)
    for row in np.flatnonzero(wrong):
        donors = (int(g.integers(n)) for _ in iter(int, 1))
        given[row] = next(keywords[d] for d in donors if not set(keywords[d]) & set(keywords[row]))
    features = torch.cat([part.features for part in parts])
    groups = torch.cat([part.subgroup for part in parts])
    pairs, _ = problem.pairs(EmojiPart(features, tuple(given), groups))
    test = torch.arange(n) >= n - len(parts[-1])
    return Planted(pairs, torch.as_tensor(wrong), test)


def found(planted: Planted, objective: Callable[[], Objective], seed: int, how: dict) -> Row:
    """AUROC of every score by drawing, of test drawings and of the others."""

    def fit(pairs: ImageTextPairs) -> ImageTextEmbedder:
        settings = {"dim": how["dim"], "dropout": how["dropout"], "structure": "diag"}
        embedder = ImageTextEmbedder(
            Precomputed(), Precomputed(), objective=objective(), **settings
        )
        rates = {"epochs": how["epochs"], "learning_rate": how["learning_rate"]}
        return embedder.fit(pairs, **rates, generator=seed, progress=False)

    scores = noisy_pairs(fit, planted.pairs, folds=FOLDS, generator=seed).by_image()
    row: Row = {}
    for name, score in scores.items():
        row |= _aurocs(name, score, planted)
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
