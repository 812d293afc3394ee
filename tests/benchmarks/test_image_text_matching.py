"""What an index of images and texts promises: who asks what, and the numbers of a split."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks.image_text.emoji import OOD_SETS, EmojiPart, EmojiProblem
from benchmarks.image_text.matching import (
    asked_once,
    image_to_text,
    matching,
    unseen_keywords,
)
from benchmarks.image_text.matching_tables import MATCHING_TABLES, WAYS
from benchmarks.records import write_record
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.image_text import ImageTextEmbedder
from laplace_metric.models import Precomputed

WORDS = [f"word {i}" for i in range(100)]


@pytest.fixture(scope="module")
def problem() -> EmojiProblem:
    """Drawings about the directions of their words; a few words are never trained on."""
    g = torch.Generator().manual_seed(0)
    directions = torch.randn(len(WORDS), 20, generator=g)
    parts = {}
    for name, n in (("train", 200), ("validation", 100), ("test", 300)):
        first = torch.arange(n) % len(WORDS)
        features = 2 * directions[first] + torch.randn(n, 20, generator=g)
        keywords = tuple((WORDS[i], WORDS[(i * 7) % 5]) for i in first.tolist())
        own = tuple(tuple(dict.fromkeys(words)) for words in keywords)
        parts[name] = EmojiPart(features, own, first, torch.arange(n))
    images = Counter(k for part in parts.values() for own in part.keywords for k in own)
    texts = {word: directions[i, :9] for i, word in enumerate(WORDS)}
    ood = {name: 9 * torch.randn(30, 20, generator=g) for name in OOD_SETS}
    return EmojiProblem(
        parts, texts, frozenset(WORDS[6:66]), images, ood, {}, torch.zeros(0, 20), {}
    )


BASES = [row // 2 for row in range(300)]


@pytest.fixture(scope="module")
def embedder(problem) -> ImageTextEmbedder:
    made = ImageTextEmbedder(Precomputed(), Precomputed(), dim=8)
    how = {"learning_rate": 0.02, "batch_size": 50, "seed": 0, "progress": False}
    return made.fit(problem.training[0], epochs=20, **how)


def test_new_keywords_are_in_no_training_pair(problem):
    words = unseen_keywords(problem)
    assert set(words) == set(WORDS[6:66])
    assert not set(words) & set(problem.training[1])


def test_one_drawing_a_base_asks_every_keyword(problem, embedder):
    asked = image_to_text(embedder, problem, BASES)
    assert len(asked.judged) == 150
    assert asked.n_items == len(problem.images)
    part, words = problem.parts["test"], sorted(problem.images)
    for query, row in enumerate(range(1, 300, 2)):
        found = asked.judged.hits.positions[query].tolist()
        right = {words[at] for at, m in zip(found, asked.judged.match[query], strict=True) if m}
        assert right == set(part.keywords[row])
    image, text = (
        embedder.embed_image(part.features[1:2]),
        embedder.embed_text(problem.texts(words)),
    )
    raw = embedder.match_logit(image, text).sigmoid().double().numpy()
    expected = np.take_along_axis(raw, asked.judged.hits.positions[:1], 1)
    np.testing.assert_allclose(asked.raw[:1], expected, rtol=1e-4, atol=1e-6)


def test_a_split_asks_what_did_not_calibrate(problem, embedder, monkeypatch):
    asked, seen = image_to_text(embedder, problem, BASES), []
    original = LabelledHits.take

    def take(self, rows):
        seen.append(rows.tolist())
        return original(self, rows)

    monkeypatch.setattr(LabelledHits, "take", take)
    row = asked_once(asked, 3)
    theirs, ours = seen[:2]
    assert sorted(theirs + ours) == list(range(150))
    right = asked.judged.match[theirs, 0].mean()
    assert row["right"] == pytest.approx(float(right))
    assert row["with a match"] == 1
    assert "called unknown, without a match" not in row
    gap = asked.raw[theirs, 0] - asked.judged.match[theirs, 0]
    assert row["raw brier"] == pytest.approx(np.square(gap).mean())
    for target in ("0.5", "0.7", "0.9"):
        made = row[f"precision {target} made"]
        assert (row[f"precision {target} kept"] is None) == (made == 0)


def test_a_run_fills_the_tables(problem, tmp_path):
    rows = [{"seed": s, **matching(problem, BASES, s, 3, 2)} for s in (0, 1)]
    write_record("image_text_matching", {"rows": rows, "splits": 2}, tmp_path)
    assert set(rows[0]) == {"seed", *WAYS}
    for name, table in MATCHING_TABLES.items():
        lines = table(tmp_path).splitlines()
        assert len(lines) == 2 + {"image-text-matching": 6, "image-text-promises": 9}.get(name, 3)
        assert "±" in table(tmp_path)
