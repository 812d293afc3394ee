"""Emoji and their keywords as features: what trains, what chooses, what is asked once.

Drawings are split by base emoji (``datasets.load``); a fifth of the training bases chooses. Every
seventh keyword or so, by its hash, is never trained on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import captions, load
from benchmarks.encoders.features import Encoding, encoded, encoded_images
from benchmarks.encoders.pretrained import MINILM_PACKAGES, MiniLM
from benchmarks.image_text.degraded import HIDDEN_IN_TRAINING, SIDE, hidden_features
from laplace_metric.image_text import ImageTextPairs

NEW_SHARE, VALIDATION_SHARE = 0.15, 0.2
PARTS = ("train", "validation", "test")


def share_of(text: str) -> float:
    """A number in [0, 1) that a text decides.

    Examples
    --------
    >>> 0 <= share_of("man") < 1
    True
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


@dataclass(frozen=True)
class EmojiPart:
    """Drawings of one part, with their keywords and names left out.

    Parameters
    ----------
    features : Tensor [N, 1280]
    keywords : of each drawing, at least one
    subgroup : Tensor [N]
    rows : Tensor [N]
        Of the drawings among those of their split.
    """

    features: Tensor
    keywords: tuple[tuple[str, ...], ...]
    subgroup: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Sequence[int]) -> EmojiPart:
        keywords, at = tuple(self.keywords[row] for row in rows), list(rows)
        return EmojiPart(self.features[at], keywords, self.subgroup[at], self.rows[at])

    def without(self, keywords: frozenset[str]) -> EmojiPart:
        """The same without some keywords, and without drawings that had no other."""
        kept = [tuple(k for k in own if k not in keywords) for own in self.keywords]
        rows = [row for row, own in enumerate(kept) if own]
        return replace(self[rows], keywords=tuple(kept[row] for row in rows))


@dataclass(frozen=True)
class EmojiProblem:
    """Everything that a run needs.

    Parameters
    ----------
    parts : by the names of ``PARTS``
    text_features : of every keyword [384]
    new : keywords that are never trained on
    images : how many drawings of all parts each keyword names
    hidden : features of the drawings of the training split with most patches hidden
    masked_features : of every keyword with most of its words hidden [384]
    """

    parts: dict[str, EmojiPart]
    text_features: dict[str, Tensor]
    new: frozenset[str]
    images: Counter[str]
    hidden: Tensor
    masked_features: dict[str, Tensor]

    def texts(self, keywords: Sequence[str]) -> Tensor:
        """Features [M, 384]."""
        return torch.stack([self.text_features[keyword] for keyword in keywords])

    def pairs(self, part: EmojiPart) -> tuple[ImageTextPairs, list[str]]:
        """Pairs of features, and the keywords in the order of their rows."""
        named = ImageTextPairs.of(part.features, part.keywords)
        return ImageTextPairs(part.features, self.texts(named.texts), named.pairs), named.texts

    @property
    def training(self) -> tuple[ImageTextPairs, list[str]]:
        """Pairs of ``trained_part``."""
        return self.pairs(self.trained_part)

    @property
    def masked(self) -> tuple[Tensor, Tensor]:
        """What is left of the drawings and of the texts of ``training``."""
        images = self.hidden[self.trained_part.rows]
        return images, torch.stack([self.masked_features[text] for text in self.training[1]])

    @property
    def trained_part(self) -> EmojiPart:
        """The training part without new keywords."""
        return self.parts["train"].without(self.new)


def load_problem(cache: Path, data: str | None, limit: int | None = None) -> EmojiProblem:
    """Read, encode (once: the cache keeps the features) and split."""
    parts: dict[str, EmojiPart] = {}
    for split in ("train", "test"):
        features, subgroup = encoded_images(
            cache, data, "emoji", split, limit, SIDE, progress=False, side=SIDE
        )
        bases = load("emoji", split, data, limit, size=8).extras["base"].tolist()
        texts = captions("emoji", split, data, limit)
        named = tuple(own[:-1] for own in texts)  # without the name
        part = EmojiPart(features, named, subgroup, torch.arange(len(features)))
        rows = [row for row in range(len(part)) if part.keywords[row]]
        if split == "test":
            parts["test"] = part[rows]
            continue
        chooses = {row for row in rows if share_of(f"base {bases[row]}") < VALIDATION_SHARE}
        parts["train"] = part[[row for row in rows if row not in chooses]]
        parts["validation"] = part[sorted(chooses)]
    images = Counter(k for part in parts.values() for own in part.keywords for k in own)
    keywords = sorted(images)
    new = frozenset(k for k in keywords if share_of(f"keyword {k}") < NEW_SHARE)
    hidden = hidden_features(cache, data, "train", limit)
    known = _encoded_keywords(cache, keywords)
    left = _encoded_keywords(cache, [masked_words(keyword) for keyword in keywords], "masked ")
    masked = {keyword: left[masked_words(keyword)] for keyword in keywords}
    return EmojiProblem(parts, known, new, images, hidden, masked)


def masked_words(text: str, share: float = HIDDEN_IN_TRAINING) -> str:
    """``text`` with a share of its words, by their hash, as [MASK]; at least one stays.

    Examples
    --------
    >>> masked_words("hand"), masked_words("waving hand")
    ('hand', 'waving [MASK]')
    """
    words = text.split()
    order = sorted(range(len(words)), key=lambda i: share_of(f"word {i} of {text}"))
    kept = set(order[: max(1, round(len(words) * (1 - share)))])
    return " ".join(word if i in kept else "[MASK]" for i, word in enumerate(words))


def _encoded_keywords(cache: Path, texts: list[str], what: str = "") -> dict[str, Tensor]:
    keywords = list(dict.fromkeys(texts))
    features = encoded_list(cache, f"emoji {what}keywords", keywords)
    return dict(zip(keywords, features, strict=True))


def encoded_list(cache: Path, name: str, texts: Sequence[str]) -> Tensor:
    """Return features [N, 384] of MiniLM, from the cache or encoded now, long ones together."""
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]
    key = Encoding("minilm", name, "all", len(texts), MINILM_PACKAGES, digest)
    order = np.argsort([len(text) for text in texts], kind="stable")

    def batches() -> Iterator[tuple[list[str], Tensor]]:
        for start in range(0, len(texts), 64):
            block = order[start : start + 64]
            yield [texts[row] for row in block], torch.as_tensor(block)

    features, rows = encoded(key, MiniLM, batches, cache, progress=False)
    return features[rows.argsort()]
