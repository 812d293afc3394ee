"""All hits that are passed on: a precision of any number of each query."""

from __future__ import annotations

import numpy as np
import pytest

from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.errors import InputError
from tests.calibration.arrays import made_or_refused


def lists(g, n, k=20):
    """Lists of 20 with 18 % relevant hits, whose scores overlap with those of others."""
    relevant = g.random((n, k)) < g.beta(1, 4.5, size=(n, 1))
    score = g.normal(size=(n, k)) + 1.5 * relevant
    order = np.argsort(-score, 1)
    return np.take_along_axis(score, order, 1), np.take_along_axis(relevant, order, 1)


@pytest.mark.parametrize("cross_fit", [0, 5])
def test_the_hits_that_are_passed_on_are_relevant_as_often_as_said(cross_fit):
    g, broken, made = np.random.default_rng(0), 0, 0
    later, truth = lists(g, 20_000)
    for _ in range(20):
        found = calibrate_scores(*lists(g, 600), cross_fit=cross_fit)
        rule = found.guarantee(precision=0.4, of="hits")
        passed = rule.passed(later)
        broken += truth[passed].mean() < 0.4
        made += passed.sum(1).mean() / 20
    assert broken <= 3
    assert made > 0.5, "more than one hit in two queries"
    proof = "proven by betting on queries" if cross_fit == 0 else "simulated, not proven"
    assert "at least 40% of the hits passed on are relevant" in str(rule)
    assert f"({proof})" in str(rule)


def uneven(seed, n, harder, k=50):
    """Nine lists in ten have one hit, one in ten has fifty, which are relevant less often."""
    g = np.random.default_rng(seed)
    long = g.random(n) < 0.1
    there = np.arange(k) < np.where(long, k, 1)[:, None]
    chance = np.where(long, 0.5, 0.97) if harder else np.where(long, 0.97, 0.7)
    relevant = g.random((n, k)) < chance[:, None]
    score = np.where(relevant, g.normal(0.7, 0.1, (n, k)), g.normal(0.6, 0.1, (n, k)))
    score = np.where(there, score, -np.inf)
    order = np.argsort(-score, 1, kind="stable")
    relevant = np.take_along_axis(relevant & there, order, 1).astype(int)
    return np.take_along_axis(score, order, 1), relevant


@pytest.mark.parametrize("cross_fit", [0, 5])
@pytest.mark.parametrize("harder", [True, False])
def test_lists_of_unequal_length_keep_the_precision_of_all_their_hits(harder, cross_fit):
    given = 0
    for seed in range(3):
        found = calibrate_scores(*uneven(seed, 1_000, harder), cross_fit=cross_fit)
        rule, refused = made_or_refused(found.guarantee, precision=0.9, of="hits")
        if rule is None:
            assert "queries at least, without any error, as they are of very" in refused
            continue
        given += 1
        score, relevant = uneven(10**6 + seed, 2_000, harder)
        assert rule.estimate >= 0.9
        assert relevant[rule.passed(score)].mean() >= 0.9
        assert "(simulated, not proven)" in str(rule)
    if cross_fit and not harder:
        assert given == 3


def test_lists_that_are_nearly_full_are_proven_by_the_number_of_places():
    g = np.random.default_rng(0)
    score, relevant = lists(g, 600)
    score[::10, 15:] = -np.inf
    found = calibrate_scores(score, relevant & np.isfinite(score), cross_fit=0)
    rule = found.guarantee(precision=0.4, of="hits")
    assert "(proven by betting on queries)" in str(rule)
    assert rule.estimate >= 0.4


def test_a_rule_of_hits_is_saved_and_passes_the_same(tmp_path):
    score, relevant = lists(np.random.default_rng(1), 600)
    rule = calibrate_scores(score, relevant).guarantee(precision=0.4, of="hits")
    rule.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    assert str(again) == str(rule)
    np.testing.assert_array_equal(again.passed(score), rule.passed(score))
    assert rule.passed(score).sum(1).mean() == pytest.approx(
        rule.queries.hits_passed(rule.value), rel=0.2
    )


def test_a_rule_of_hits_and_one_of_answers_are_not_taken_for_each_other():
    score, relevant = lists(np.random.default_rng(2), 400)
    found = calibrate_scores(score, relevant)
    with pytest.raises(InputError, match=r"call rule\.passed"):
        found.guarantee(precision=0.4, of="hits")(score)
    with pytest.raises(InputError, match="of='hits'"):
        found.guarantee(precision=0.4).passed(score)
    with pytest.raises(InputError, match=r"recall=.*one answer.*keep_relevant"):
        found.guarantee(recall=0.4, of="hits")
    with pytest.raises(InputError, match="of='label'"):
        found.guarantee(precision=0.4, of="label")
    with pytest.raises(InputError, match="independent queries.*one answer"):
        found.guarantee(precision=0.4, of="hits", open_set_fraction=0.2)
