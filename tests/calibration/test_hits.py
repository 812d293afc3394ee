"""All hits that are passed on: a precision of any number of each query."""

from __future__ import annotations

import numpy as np
import pytest

from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.errors import InputError


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
    with pytest.raises(InputError, match=r"recall= is of one answer a query.*keep_relevant"):
        found.guarantee(recall=0.4, of="hits")
    with pytest.raises(InputError, match="of='label'"):
        found.guarantee(precision=0.4, of="label")
    with pytest.raises(InputError, match="takes independent queries and one answer"):
        found.guarantee(precision=0.4, of="hits", open_set_fraction=0.2)
