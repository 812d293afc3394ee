"""Questions to images and texts against their definitions, and a run on made-up drawings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks.image_text import questions
from benchmarks.image_text.degraded import LEVELS
from benchmarks.image_text.emoji import OOD_SETS, EmojiPart, EmojiProblem
from benchmarks.image_text.measure import METHODS, measured
from benchmarks.image_text.questions import (
    count_regression,
    partial_correlation,
    retrieval,
    sibling_keywords,
)
from benchmarks.image_text.tables import TABLES
from benchmarks.records import write_record


def test_retrieval_counts_hits_among_the_nearest():
    s = torch.tensor([[4.0, 3, 2, 1], [1, 2, 3, 4], [1, 2, 3, 4]])
    match = torch.tensor([[True, False, True, False], [False] * 4, [True, True, False, False]])
    row = retrieval(s, match)
    assert row["r@1"] == 0.5
    assert row["r@5"] == 1.0
    # the first query: hits at 1 and 3, of which 1 counts (R = 2); the last: none in the first 2
    assert row["map@r"] == pytest.approx((1 / 2 + 0) / 2)


def test_partial_correlation_takes_a_common_cause_away():
    g = np.random.default_rng(0)
    cause = g.normal(size=4_000)
    a, b = cause + 0.5 * g.normal(size=4_000), cause + 0.5 * g.normal(size=4_000)
    assert abs(partial_correlation(a, b, cause)) < 0.06
    assert partial_correlation(a, b, g.normal(size=4_000)) > 0.7


def test_siblings_are_of_the_subgroup_and_not_the_drawings_own():
    match = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]).bool()
    siblings = sibling_keywords(torch.tensor([5, 5, 7]), match)
    assert siblings.long().tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def made_up() -> EmojiProblem:
    g = torch.Generator().manual_seed(0)
    words = [f"{i * 'a'}b" for i in range(12)]
    parts = {}
    for name, n in (("train", 40), ("validation", 15), ("test", 15)):
        subgroup = torch.arange(n) % 4
        keywords = tuple((words[i % 10], words[10 + i % 2], words[(3 * i) % 9]) for i in range(n))
        keywords = tuple(tuple(dict.fromkeys(own)) for own in keywords)
        features, rows = torch.randn(n, 20, generator=g), torch.arange(n)
        parts[name] = EmojiPart(features, keywords, subgroup, rows)
    images = Counter(k for part in parts.values() for own in part.keywords for k in own)
    features = {word: torch.randn(9, generator=g) for word in words}
    ood = {name: torch.randn(8, 20, generator=g) for name in OOD_SETS}
    levels = [torch.randn(15, 20, generator=g) for _ in range(3)]
    degraded, hidden = dict.fromkeys(LEVELS, levels), torch.randn(40, 20, generator=g)
    return EmojiProblem(
        parts, features, frozenset(words[::5]), images, ood, degraded, hidden, features
    )


class Widening:
    """Numbers of an embedder that grow, shrink and stay with what is gone."""

    def __call__(self, _: object, features: torch.Tensor) -> dict[str, torch.Tensor]:
        x = features[:, 0]
        return {"grows": x.exp(), "shrinks": -x, "stays": 0 * x}


def test_severity_is_spearmans_correlation_with_the_level(monkeypatch):
    monkeypatch.setattr(questions, "image_numbers", Widening())
    levels = [torch.full((4, 2), float(level)) for level in (0, 1, 5)]
    row = questions.severity(None, levels)
    assert row.pop("by level")["shrinks"] == [-0.0, -1.0, -5.0]
    assert row == pytest.approx({"grows": 1.0, "shrinks": -1.0, "stays": 0.0})
    levels[2][0] = -1.0  # one drawing: ranks 2, 3, 1
    assert questions.severity(None, levels)["grows"] == pytest.approx((3 - 0.5) / 4)


def test_a_run_answers_every_question_and_fills_the_tables(tmp_path):
    problem = made_up()
    rows = [measured(problem, method, seed, 2) for method in METHODS for seed in (0, 1)]
    for row in rows:
        deterministic = row["method"] in ("clip", "siglip")
        assert ("new keywords" in row) is not deterministic
        assert ("inc, sibling" in row["test"]) is not deterministic
        assert 0 <= row["test"]["text to image map@r"] <= 1
    regression = {"method": "ridge", **count_regression(problem, problem.training[1])}
    write_record("image_text", {"rows": rows, "regression": regression}, tmp_path)
    for name, table in TABLES.items():
        lines = table(tmp_path).splitlines()
        without = {"image-text-generality": ("clip", "siglip")}
        more = name.endswith("generality")
        assert len(lines) == 2 + len(METHODS) - len(without.get(name, ())) + more
