"""Questions to the uses against their definitions, and runs on made-up drawings and terms."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks.image_text.classes import (
    NEAREST,
    TEMPLATES,
    ClassProblem,
    unlabelled_weights,
)
from benchmarks.image_text.emoji import EmojiPart, EmojiProblem
from benchmarks.image_text.hierarcaps import (
    HierarCaps,
    feature_ways,
    ordered,
    text_ways,
    ways,
)
from benchmarks.image_text.measure import METHODS
from benchmarks.image_text.terms import KINDS, parts_of, term_regression, trained_on_terms
from benchmarks.image_text.uses import FINDERS, HIERARCHY, TRAINED, transferred
from benchmarks.image_text.uses_tables import RECORD, TABLES, WORDNET_RECORD, WORDNET_TABLES
from benchmarks.image_text.wordnet import WordNetProblem
from benchmarks.image_text.wrong_captions import found, plant
from benchmarks.records import write_record
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from tests.benchmarks.test_image_text import made_up


def photographs(n: int = 30) -> HierarCaps:
    g = torch.Generator().manual_seed(1)
    own = torch.cat([torch.arange(n)[:, None] % 5, 5 + torch.arange(3 * n).view(n, 3)], 1)
    images, texts = torch.randn(n, 20, generator=g), torch.randn(5 + 3 * n, 9, generator=g)
    words = torch.ones(len(texts)).long()
    words[own] = torch.arange(1, 5).expand(n, 4)
    return HierarCaps(images, texts, torch.randn(1, 9, generator=g), own, words)


def test_levels_are_ordered_where_every_one_is_below_the_last():
    own = torch.arange(12).view(3, 4)
    values = torch.tensor([4.0, 3, 2, 1, 4, 3, 3, 1, 1, 2, 3, 4])
    row = ordered(values, own)
    assert row["ordered"] == pytest.approx(1 / 3)
    assert row["neighbours"] == pytest.approx((3 + 2 + 0) / 9)
    many = torch.arange(4000).flip(0).double()
    row = ordered(many, torch.arange(4000).view(1000, 4))
    assert row["ordered"] == 1
    assert row["shuffled"] == pytest.approx(1 / 24, abs=0.02)


def test_the_way_through_texts_on_a_line_is_found_and_that_of_another_photograph_is_not():
    angles = torch.linspace(0.2, 1.2, 40)
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
    assert len(angles) == len(points)
    texts = Embedding(Gaussian(points, torch.full_like(points, 0.01)))
    empty = Embedding(Gaussian(start[None], torch.full((1, 3), 0.01)))
    rows = ways(texts[own[:, 3]], texts, empty, own)
    assert rows["cosine, empty"]["recall"] > 0.7
    assert rows["other photograph"]["recall"] < 0.2
    given = text_ways(texts, empty, own)
    assert given["cosine, empty"]["recall"] > 0.7
    assert given["cosine, nearest"]["root"] > given["cosine, empty"]["root"]
    assert given["other photograph"]["recall"] < 0.2
    assert set(rows["csd, empty"]) == {"precision", "recall", "any", "root"}


def drawings() -> EmojiProblem:
    """Sixty with three of ninety keywords each."""
    g = torch.Generator().manual_seed(7)
    words = [f"word {i}" for i in range(90)]
    parts, start = {}, 0
    for name, n in (("train", 30), ("validation", 10), ("test", 20)):
        keywords = tuple(
            (words[i % 30], words[30 + i // 2 % 30], words[60 + i % 30])
            for i in range(start, start + n)
        )
        rows = torch.arange(n)
        parts[name] = EmojiPart(torch.randn(n, 20, generator=g), keywords, rows % 4, rows)
        start += n
    images = Counter(k for part in parts.values() for own in part.keywords for k in own)
    features = {word: torch.randn(9, generator=g) for word in words}
    return EmojiProblem(parts, features, frozenset(), images, {}, {}, torch.zeros(0, 20), {})


def test_wrong_keywords_are_of_another_drawing_and_share_nothing_with_its_own():
    problem = drawings()
    planted = plant(problem, torch.arange(60) // 2, 3)
    parts = [problem.parts[name] for name in ("train", "validation", "test")]
    before = [set(own) for part in parts for own in part.keywords]
    assert int(planted.wrong.sum()) == round(0.2 * len(before))
    assert int(planted.test.sum()) == len(problem.parts["test"])
    features = {tuple(f.tolist()): name for name, f in problem.text_features.items()}
    for row, wrong in enumerate(planted.wrong.tolist()):
        mine = planted.pairs.pairs[planted.pairs.pairs[:, 0] == row][:, 1]
        after = {features[tuple(planted.pairs.texts[t].tolist())] for t in mine.tolist()}
        assert (after == before[row]) is not wrong
        assert not wrong or not after & before[row]
        assert not wrong or after in before
    counts = planted.pairs.images_per_text.tolist()
    assert sorted(counts) == sorted(problem.images.values())


def terms() -> WordNetProblem:
    """Forty kinds of five things."""
    g = torch.Generator().manual_seed(2)
    n, names = 40, tuple(f"term {i % 7 * 'x'}{i}" for i in range(45))
    above = tuple((i % 5, *((4,) if i % 5 < 2 else ())) for i in range(n))
    descendants = torch.arange(45) % 6
    new = torch.arange(45) % 4 == 1
    new[:5] = False
    vectors = torch.randn(45, 9, generator=g), torch.randn(n, 9, generator=g)
    return WordNetProblem(
        vectors[1], vectors[0], names, 5 + torch.arange(n), above, descendants, new
    )


def test_new_terms_and_their_glosses_are_not_trained_on():
    problem = terms()
    for with_glosses in (False, True):
        pairs = problem.training(with_glosses=with_glosses)
        texts = {tuple(row) for row in pairs.texts.tolist()}
        images = {tuple(row) for row in pairs.images.tolist()}
        for term in problem.new.nonzero().flatten().tolist():
            assert tuple(problem.terms[term].tolist()) not in texts
        hidden = problem.new[problem.own]
        assert not {tuple(row) for row in problem.glosses[hidden].tolist()} & (texts | images)
        assert len(images) == int((~hidden).sum())
        assert len(texts) == pairs.n_texts
        assert (tuple(problem.glosses[1].tolist()) in texts) is with_glosses
    parts = parts_of(problem)
    assert sorted(torch.cat(list(parts.values())).tolist()) == list(range(45))


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


def test_runs_answer_every_question_and_fill_the_tables(tmp_path):
    problem, photos, wordnet = made_up(), photographs(), terms()
    g = torch.Generator().manual_seed(4)
    labels = torch.arange(30) % 3
    one = ClassProblem(
        torch.randn(3 * len(TEMPLATES), 9, generator=g),
        torch.randn(30, 20, generator=g), labels, torch.randn(30, 20, generator=g), labels,
    )  # fmt: skip
    asked = {"subgroups": one, "cifar10": one}
    pairs = problem.training[0]
    methods = (*TRAINED, HIERARCHY)
    rows = [transferred(problem, photos, asked, m, s, 1, pairs) for m in methods for s in (0, 1)]
    for row in rows:
        assert ("levels" in row) is (row["method"] not in ("clip", "siglip"))
        assert ("weights, 5 shots" in row["subgroups"]) is ("levels" in row)
        assert 0 <= row["hierarcaps"]["cosine, empty"]["precision"] <= 1
    wrong = [
        {
            "method": m,
            "seed": 0,
            "found": found(plant(drawings(), torch.arange(60) // 2, 0), METHODS[m], 0, 1),
        }
        for m in FINDERS
    ]
    words = ordered(-photos.words.double(), photos.own)
    assert words["ordered"] == 1
    content = {"rows": rows, "wrong": wrong, "words": words}
    write_record(RECORD, content, tmp_path)
    more = [trained_on_terms(wordnet, photos, kind, 0, 1) for kind in KINDS]
    regression = {"method": "ridge regression", **term_regression(wordnet, photos)}
    content = {"rows": more, "regression": regression, "features": feature_ways(photos)}
    write_record(WORDNET_RECORD, content, tmp_path)
    for table in (*TABLES.values(), *WORDNET_TABLES.values()):
        lines = table(tmp_path).splitlines()
        assert len({line.count("|") for line in lines}) == 1
        assert len(lines) > 3
