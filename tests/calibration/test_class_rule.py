"""A precision of the answers of each class: tested class by class, or not answered."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration import CalibrationQueries, ClassRule, Guarantee, Rule
from laplace_metric.calibration.guarantees import _queries_needed
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.search import Index

EIGHT_TENTHS, NINE_TENTHS = (Guarantee("precision", target, of="label") for target in (0.8, 0.9))

pytestmark = pytest.mark.usefixtures("quick")
SHARES = np.array([0.15, 0.15, 0.3, 0.3, 0.07, 0.03])


def drawn(g, n):
    """Classes of which the first two lie near to each other, and some are rare."""
    means = np.eye(6) * np.array([1.2, 1.2, 4, 4, 4, 4])
    y = g.choice(6, n, p=SHARES)
    return (means[y] + 0.7 * g.normal(size=(n, 6))).astype(np.float32), y


@pytest.fixture(scope="module")
def index():
    g = np.random.default_rng(0)
    x, y = drawn(g, 600)
    embedder = LaplaceEmbedder.from_embeddings(x, y, distance="euclidean", hessian="positives")
    index = embedder.index(x, y, progress=False)
    index.calibrate(*drawn(g, 1_600))
    return index


def test_each_class_keeps_the_precision_and_rare_ones_are_not_answered(index):
    rule = index.guarantee_by_class(0.9)
    assert isinstance(rule, ClassRule)
    assert rule.proven
    assert set(rule.rules) | set(rule.refused) == set(range(6))
    assert 5 in rule.refused
    assert rule.refused[5].needed is None
    assert rule.refused[5].least > rule.refused[5].answers
    x, y = drawn(np.random.default_rng(1), 6_000)
    answers, together = index.ask(x, rule), index.ask(x, index.guarantee(precision=0.9))
    given = set(answers.label[answers.answered])
    assert given == set(rule.rules)
    for name in given:
        own = answers.label == name
        assert (y[own] == name).mean() >= 0.9
    worst = min((y[together.label == c] == c).mean() for c in range(6))
    assert worst < 0.9  # all together hide it
    assert answers.answered.mean() == pytest.approx(rule.coverage, abs=0.05)


def test_what_is_printed_names_the_theorem_the_level_and_what_is_missing(index):
    rule = index.guarantee_by_class(0.9)
    told, n = (
        str(rule),
        len(rule.rules) + sum(1 for each in rule.refused.values() if each.answers >= 60),
    )
    assert f"{len(rule.rules)} of 6 classes" in told
    assert "guarantees a precision of at least 90% of the answers of each of these classes" in told
    assert "(proven by fixed sequences of exact tests, but for the test for unfamiliar" in told
    assert "Bonferroni" in told
    assert all(1 - each.confidence == pytest.approx(0.05 / n) for each in rule.rules.values())
    missing = rule.refused[5]
    assert f"5 ({missing.answers} tested answers, at least {missing.least} needed)" in told
    assert f"never: {', '.join(f'{c!r} (' for c in [*rule.refused][:1])}" in told
    assert "2: " not in repr(rule).splitlines()[0]


def test_a_change_of_the_gallery_is_told_and_a_file_keeps_the_answers(index, tmp_path):
    index.save(tmp_path / "index")
    again = Index.load(
        tmp_path / "index",
        LaplaceEmbedder.from_embeddings(
            *drawn(np.random.default_rng(0), 600), distance="euclidean", hessian="positives"
        ),
    )
    assert str(again.guarantee_by_class(0.9)) == str(index.guarantee_by_class(0.9))
    again.add(*drawn(np.random.default_rng(3), 30), ids=np.arange(30) + 10_000)
    changed = again.guarantee_by_class(0.9)
    assert "holds for the 600 items that were there; 30 were added" in str(changed)
    assert not changed.proven


def queries_of(g, chances, answer):
    """Answers whose chance to be right is constant within a class."""
    n = len(answer)
    right = g.random(n) < chances[answer]
    return CalibrationQueries.of_answers(
        g.random(n), right, right, grid=g.random(n), abstained=np.zeros(n, bool), cross_fitted=False
    )


def test_where_a_class_just_misses_the_target_it_is_guaranteed_as_rarely_as_said(monkeypatch):
    """All of eight classes at once: any broken one counts.

    After ten runs without the advice on how many queries are missing: it is the time of a refusal,
    and decides nothing.
    """
    g, broken, runs = np.random.default_rng(0), 0, 300
    answer = np.repeat(np.arange(8), 100)
    for number in range(runs):
        if number == 10:
            monkeypatch.setattr(_queries_needed, "_more", lambda *_: None)
        queries = queries_of(g, np.full(8, 0.7999), answer)
        try:
            rule = ClassRule.of_classes(queries, EIGHT_TENTHS, answer, np.arange(8))
        except InputError:
            continue
        broken += len(rule.rules) > 0
    assert broken / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert broken > 0


def test_a_class_with_few_answers_does_not_cost_the_others_their_level():
    g = np.random.default_rng(0)
    answer = np.repeat([0, 1, 2], [400, 300, 8])
    queries = queries_of(g, np.array([0.97, 0.97, 0.97]), answer)
    rule = ClassRule.of_classes(
        queries, Guarantee("precision", 0.9, of="label"), answer, np.array(["a", "b", "c"])
    )
    assert set(rule.rules) == {"a", "b"}
    assert all(each.confidence == pytest.approx(0.975) for each in rule.rules.values())
    assert rule.refused["c"].answers == 8
    assert rule.coverage <= 700 / 708


def test_a_rule_of_classes_is_made_of_classes_alone(index, tmp_path):
    rule = index.guarantee_by_class(0.9)
    assert isinstance(rule, Rule)
    with pytest.raises(InputError, match=r"rule\.rules\[label\]"):
        rule.rates()
    with pytest.raises(InputError, match="call guarantee_by_class"):
        rule.save(tmp_path / "rule")
    one = index.guarantee(precision=0.8)
    one.save(tmp_path / "rule.safetensors")
    for made in (ClassRule.at(0.5), ClassRule.load(tmp_path / "rule.safetensors")):
        assert type(made) is Rule, "without thresholds of classes it would answer nothing"


def test_groups_are_counted_class_by_class():
    g = np.random.default_rng(0)
    answer = np.repeat([0, 1], 600)
    right = np.repeat(g.random(240) < 0.97, 5)
    group = np.repeat(np.arange(240), 5).astype(float)
    queries = CalibrationQueries.of_answers(
        np.ones(1200), right, right, grid=np.ones(50), abstained=~np.ones(1200, bool),
        cross_fitted=False, group=group,
    )  # fmt: skip
    rule = ClassRule.of_classes(queries, EIGHT_TENTHS, answer, np.arange(2))
    assert "betting on groups" in str(rule)
    few = queries.take(np.flatnonzero(group % 120 < 8))
    with pytest.raises(InputError, match=r"any class: 0.*8 tested answers"):
        ClassRule.of_classes(few, EIGHT_TENTHS, np.repeat([0, 1], 40), np.arange(2))


def test_what_cannot_be_is_refused_by_name(index):
    with pytest.raises(InputError, match=r"precision=0\.999 .*guaranteed.*any class: "):
        index.guarantee_by_class(0.999)
    for precision in (0, 1, 1.5, "a", None):
        with pytest.raises(InputError, match="precision"):
            index.guarantee_by_class(precision)
    with pytest.raises(InputError, match="confidence"):
        index.guarantee_by_class(0.9, confidence=2)
    with pytest.raises(InputError, match=r"found.*a ndarray"):
        index.guarantee_by_class(0.9)(np.ones((3, 4)))
    x, y = drawn(np.random.default_rng(2), 200)
    plain = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    with pytest.raises(NotFittedError, match="not calibrated"):
        plain.guarantee_by_class(0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.calibrate(torch.from_numpy(x + 0.1), matches=[[i] for i in range(200)])
    with pytest.raises(NotFittedError, match="calibrated with matches="):
        plain.guarantee_by_class(0.9)


class Cleared(dict):
    """Rules that another thread clears at each look and after each write."""

    def __contains__(self, key):
        return True

    def __setitem__(self, key, value):
        pass


def test_rules_that_another_thread_clears_meanwhile_are_made_again(index):
    calibration = index.calibration
    for name in ("_rules", "_class_rules", "_level_rules"):
        calibration.__dict__[name] = Cleared()
    try:
        groups = {c: str(c // 2) for c in range(6)}
        assert calibration.guarantee(precision=0.8).target == 0.8
        assert calibration.guarantee_by_class(0.8).target == 0.8
        assert calibration.guarantee_by_level(0.8, groups).target == 0.8
    finally:
        for name in ("_rules", "_class_rules", "_level_rules"):
            del calibration.__dict__[name]
