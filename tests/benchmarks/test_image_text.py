"""Questions to images and texts against their definitions, and a run on made-up drawings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks.image_text.classes import NEAREST, TEMPLATES, ClassProblem, unlabelled_weights
from benchmarks.image_text.emoji import EmojiPart, EmojiProblem
from benchmarks.image_text.hierarcaps import HierarCaps, ways
from benchmarks.image_text.measure import METHODS, measured
from benchmarks.image_text.questions import count_regression, partial_correlation, retrieval
from benchmarks.image_text.tables import TABLES
from benchmarks.records import write_record
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding


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
    hidden = torch.randn(40, 20, generator=g)
    return EmojiProblem(parts, features, frozenset(words[::5]), images, hidden, features)


def photographs(n: int = 30) -> HierarCaps:
    g = torch.Generator().manual_seed(1)
    own = torch.cat([torch.arange(n)[:, None] % 5, 5 + torch.arange(3 * n).view(n, 3)], 1)
    images, texts = torch.randn(n, 20, generator=g), torch.randn(5 + 3 * n, 9, generator=g)
    return HierarCaps(images, texts, torch.randn(1, 9, generator=g), own)


def test_the_way_through_texts_on_a_line_is_found_and_that_of_another_photograph_is_not():
    own = torch.arange(40).view(10, 4)
    start = torch.tensor([1.0, 0.0, 0.0])
    directions = torch.nn.functional.normalize(
        torch.randn(10, 2, generator=torch.Generator().manual_seed(0)), dim=1
    )
    steps = torch.linspace(0.3, 1.2, 4)
    points = torch.stack([
        torch.cat([start[:1] * a.cos(), a.sin() * directions[n]])
        for n in range(10) for a in steps
    ])  # fmt: skip
    texts = Embedding(Gaussian(points, torch.full_like(points, 0.01)))
    empty = Embedding(Gaussian(start[None], torch.full((1, 3), 0.01)))
    rows = ways(texts[own[:, 3]], texts, empty, own)
    assert rows["cosine, empty"]["recall"] > 0.7
    assert rows["other photograph"]["recall"] < 0.2
    assert set(rows["csd, empty"]) == {"precision", "recall", "any", "root"}


def test_weights_without_labels_follow_the_nearest_images():
    mu = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 1.0], [0, 0.6, 0.8]])
    prompts = Embedding(Gaussian(mu, torch.full((4, 3), 0.01)))
    near, far = mu[[0, 3]].repeat(NEAREST, 1), -torch.ones(20, 3)
    pool = torch.nn.functional.normalize(torch.cat([near, far]), dim=1)
    images = Embedding(Gaussian(pool, torch.full((len(pool), 3), 1e-4)))
    pi = unlabelled_weights(images, prompts, 2, 0)
    assert pi.argmax(1).tolist() == [0, 1]
    assert pi.max(1).values.min() > 0.9
    assert torch.equal(pi, unlabelled_weights(images, prompts, 2, 0))


def test_a_run_answers_every_question_and_fills_the_tables(tmp_path):
    problem, photos = made_up(), photographs()
    g = torch.Generator().manual_seed(4)
    labels = torch.arange(30) % 3
    one = ClassProblem(
        torch.randn(3 * len(TEMPLATES), 9, generator=g),
        torch.randn(30, 20, generator=g), labels, torch.randn(30, 20, generator=g), labels,
    )  # fmt: skip
    asked = photos, {"subgroups": one, "cifar10": one}
    rows = [measured(problem, method, seed, 2, *asked) for method in METHODS for seed in (0, 1)]
    for row in rows:
        deterministic = row["method"] in ("clip", "siglip")
        assert ("new keywords" in row) is not deterministic
        assert ("weights, 5 shots" in row["subgroups"]) is not deterministic
        assert 0 <= row["test"]["text to image map@r"] <= 1
        assert 0 <= row["hierarcaps"]["cosine, empty"]["precision"] <= 1
    regression = {"method": "ridge", **count_regression(problem, problem.training[1])}
    write_record("image_text", {"rows": rows, "regression": regression}, tmp_path)
    for name, table in TABLES.items():
        lines = table(tmp_path).splitlines()
        without = {"image-text-generality": ("clip", "siglip")}
        more = name.endswith("generality")
        assert len(lines) == 2 + len(METHODS) - len(without.get(name, ())) + more
