"""FPIR of new classes: one query a class, refusals, files; the guarantee with known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.calibration.guarantees._biometric_rates import threshold_of_false
from laplace_metric.errors import InputError

RATE = "fpir"


def known(g, n=300):
    right = g.random(n) < 0.9
    return calibrate_scores((g.normal(size=n) + 4 * right)[:, None], right[:, None], kind="score")


def new(g, n, m=10):
    """Scores of m queries of each of n classes, which are alike within a class."""
    classes = np.repeat(np.arange(n), m)
    return (g.normal(size=n)[classes] + g.normal(size=n * m))[:, None], classes


@pytest.fixture(scope="module")
def calibration():
    return known(np.random.default_rng(0))


def test_the_guarantee_counts_classes_where_counting_queries_breaks_it(calibration):
    """60 classes of ten queries, FPIR .1: true rate norm.sf(t / sqrt 2)."""
    grid, broken, naive = np.linspace(-6, 12, 1_801), 0, 0
    for run in range(200):
        score, classes = new(np.random.default_rng(run), 60)
        unseen = calibration.with_new_classes(score, classes)
        each = replace(unseen.queries, unseen_class=np.arange(600.0))
        queries = replace(unseen, queries=each)
        rates = []
        for of in (unseen, queries):
            rule = of.guarantee(fpir=0.1)
            rates.append(norm.sf(grid[rule(grid[:, None]).answered.argmax()] / 2**0.5))
        broken, naive = broken + (rates[0] > 0.1), naive + (rates[1] > 0.1)
    assert broken <= 14  # P(Bin(200, .05) > 14) = .08
    assert naive > 20


@settings(deadline=None)
@given(st.integers(30, 80), st.integers(1, 4), st.integers(0, 99))
def test_a_class_gives_one_query(calibration, n, m, seed):
    score, classes = new(np.random.default_rng(seed), n, m)
    unseen = calibration.with_new_classes(score, [f"c{c}" for c in classes])
    try:
        rule = unseen.guarantee(fpir=0.12)
    except InputError:  # one query of each was accepted less often than all are
        assert m > 1
        return
    assert rule.n_tested == n
    if m == 1:
        assert rule.value == threshold_of_false(unseen.queries.unseen, 0.12, 0.05)[0]
    p = calibration.probability(score)[:, 0]
    each = [(p[classes == c] >= rule.value).mean() for c in range(n)]
    assert rule.rates()[RATE] == pytest.approx(np.mean(each))
    assert "new classes" in str(rule)


def test_classes_with_many_queries_count_as_others_do(calibration):
    g = np.random.default_rng(0)
    score, classes = new(g, 60, 1)
    more = np.concatenate([score, np.full((500, 1), 9.0)]), np.r_[classes, np.zeros(500)]
    rule = calibration.with_new_classes(*more).guarantee(fpir=0.1)
    assert rule.rates()[RATE] < 0.1


def test_few_classes_are_refused(calibration):
    score, classes = new(np.random.default_rng(0), 4, 500)
    unseen = calibration.with_new_classes(score, classes)
    with pytest.raises(InputError, match="59 new classes.*there are 4.*less"):
        unseen.guarantee(fpir=0.05)
    with pytest.raises(InputError, match="comparisons.*no match"):
        unseen.guarantee(fmr=1e-4)
    with pytest.raises(InputError, match=r"classes has shape \(3,\).*each of 2000"):
        calibration.with_new_classes(score, [1, 2, 3])
    with pytest.raises(InputError, match="2 hits.*pass 1"):
        calibration.with_new_classes(np.hstack([score, score]), classes)


def test_a_rule_for_new_classes_is_saved(calibration, tmp_path):
    unseen = calibration.with_new_classes(*new(np.random.default_rng(0), 80))
    rule = unseen.guarantee(fpir=0.1)
    rule.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    assert (again.value, again.n_tested, str(again)) == (rule.value, rule.n_tested, str(rule))
    assert again.rates() == rule.rates()


def test_new_classes_of_which_none_finds_anything_are_refused(calibration):
    with pytest.raises(InputError, match="new class.*hit"):
        calibration.with_new_classes(np.full((60, 1), -np.inf), np.arange(60))
    for classes in (["a", None, "b"], [np.nan, 1.0, 2.0]):
        with pytest.raises(InputError, match="classes.*several types"):
            calibration.with_new_classes(np.zeros((3, 1)), np.array(classes, dtype=object))
    with pytest.raises(InputError, match="missing"):
        calibration.with_new_classes(np.zeros((3, 1)), [np.nan, 1.0, 2.0])
