"""Glosses and terms of WordNet as features: a gloss is a case of its term and of its hypernyms.

The glosses take the place of the images: each belongs to its own term and to every term that
includes it. Every fifth term or so, by its hash, is never trained on, and neither is its gloss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import WordNetNouns, wordnet_nouns
from benchmarks.encoders.features import Encoding, encoded
from benchmarks.encoders.pretrained import MINILM_PACKAGES, MiniLM
from benchmarks.image_text.emoji import share_of
from laplace_metric.image_text import ImageTextPairs

GLOSSES, HELD_OUT = 0.12, 0.2
"""Shares of the first senses whose glosses are taken, and of the terms that are held out."""


@dataclass(frozen=True)
class WordNetProblem:
    """Glosses, terms, and which belong together.

    Parameters
    ----------
    glosses : Tensor [N, 384]
    terms : Tensor [M, 384]
    names : of the terms [M]
    own : Tensor [N]
        The term of each gloss.
    above : of each gloss the terms that include its own
    descendants : Tensor [M]
        How many synsets are a kind of each term, in all of WordNet.
    new : Tensor [M], bool
        Terms that are never trained on.
    """

    glosses: Tensor
    terms: Tensor
    names: tuple[str, ...]
    own: Tensor
    above: tuple[tuple[int, ...], ...]
    descendants: Tensor
    new: Tensor

    def training(self, *, with_glosses: bool = False) -> ImageTextPairs:
        """Glosses of terms that are not new, with those of their terms that are not.

        ``with_glosses``: each gloss is also a text that names itself alone, so that the tower of
        texts sees long and specific ones, and not terms only.
        """
        rows = [
            (gloss, term)
            for gloss, (own, above) in enumerate(zip(self.own.tolist(), self.above, strict=True))
            for term in (own, *above)
            if not bool(self.new[own]) and not bool(self.new[term])
        ]
        texts = self.terms
        if with_glosses:
            texts = torch.cat([texts, self.glosses])
            rows += [(gloss, len(self.terms) + gloss) for gloss in {gloss for gloss, _ in rows}]
        table = torch.tensor(rows)
        glosses, i = table[:, 0].unique(return_inverse=True)
        used, t = table[:, 1].unique(return_inverse=True)
        return ImageTextPairs(self.glosses[glosses], texts[used], torch.stack([i, t], 1))


def load_wordnet(cache: Path, limit: int | None = None) -> WordNetProblem:
    """Read, choose and encode (once: the cache keeps the features)."""
    nouns = wordnet_nouns()
    first = [row for row in range(len(nouns)) if nouns.first_sense[row]]
    chosen = [row for row in first if share_of(f"gloss {nouns.terms[row][0]}") < GLOSSES]
    if limit is not None:
        chosen = chosen[:: max(1, len(chosen) // limit)][:limit]
    return _problem(nouns, chosen, cache)


def _problem(nouns: WordNetNouns, chosen: list[int], cache: Path) -> WordNetProblem:
    above = {row: [a for a in sorted(nouns.ancestors[row]) if nouns.first_sense[a]]
             for row in chosen}  # fmt: skip
    synsets = sorted({*chosen, *(a for own in above.values() for a in own)})
    place = {synset: number for number, synset in enumerate(synsets)}
    names = tuple(nouns.terms[row][0] for row in synsets)
    return WordNetProblem(
        encoded_list(cache, "wordnet glosses", [nouns.glosses[row] for row in chosen]),
        encoded_list(cache, "wordnet terms", names),
        names,
        torch.tensor([place[row] for row in chosen]),
        tuple(tuple(place[a] for a in above[row]) for row in chosen),
        nouns.n_descendants[synsets],
        torch.tensor([share_of(f"term {name}") < HELD_OUT for name in names]),
    )


def encoded_list(cache: Path, name: str, texts: Sequence[str]) -> Tensor:
    """Features [N, 384] of MiniLM, from the cache or encoded now, long ones beside long ones."""
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]
    key = Encoding("minilm", name, "all", len(texts), MINILM_PACKAGES, digest)
    order = np.argsort([len(text) for text in texts], kind="stable")

    def batches() -> Iterator[tuple[list[str], Tensor]]:
        for start in range(0, len(texts), 64):
            block = order[start : start + 64]
            yield [texts[row] for row in block], torch.as_tensor(block)

    features, rows = encoded(key, MiniLM, batches, cache, progress=False)
    return features[rows.argsort()]
