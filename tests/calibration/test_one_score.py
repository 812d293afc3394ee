"""With one score nothing has to be learnt: all queries test, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.calibration.probability import _match_probability
from laplace_metric.errors import InputError

RUNS, DELTA = 200, 0.05
MOST = DELTA + 3 * (DELTA * (1 - DELTA) / RUNS) ** 0.5


def pairs(g, n, apart=0.15):
    """Cosines of judged pairs, 70 % of which match."""
    right = g.random(n) < 0.7
    return g.normal(np.where(right, 0.65 + apart, 0.65), 0.07), right


def precision_from(t, apart=0.15):
    good, bad = 0.7 * norm.sf(t, 0.65 + apart, 0.07), 0.3 * norm.sf(t, 0.65, 0.07)
    return good / (good + bad)


def guaranteed(score, right, **asked):
    """The rule; None if it cannot be given."""
    try:
        return calibrate_scores(score, right).guarantee(**asked)
    except InputError:
        return None


def test_all_queries_test_and_the_theorem_is_named():
    found = calibrate_scores(*pairs(np.random.default_rng(0), 300))
    rule = found.guarantee(precision=0.9)
    assert (len(found.queries), found.cross_fitted) == (300, False)
    assert (rule.n_tested, rule.proven) == (300, True)
    assert "(proven by a fixed sequence of exact tests, if a better score is never less" in str(
        rule
    )
    assert "on 300 queries: precision" in str(rule)
    for rate in ("recall", "fmr", "fpir"):
        assert "(proven by order statistics)" in str(found.guarantee(**{rate: 0.2}))
    halves = calibrate_scores(*pairs(np.random.default_rng(0), 300), cross_fit=0)
    assert len(halves.queries) == 150


def test_more_is_answered_than_by_halves_and_the_guarantee_is_kept():
    """Of what an oracle that knows the truth would answer, four fifths."""
    g, broken, ours, halved = np.random.default_rng(0), 0, 0.0, 0.0
    grid = np.linspace(0.5, 1, 2_001)
    best = float(grid[precision_from(grid) >= 0.9][0])
    share = lambda t: 0.7 * norm.sf(t, 0.8, 0.07) + 0.3 * norm.sf(t, 0.65, 0.07)  # noqa: E731
    for _ in range(RUNS):
        score, right = pairs(g, 300)
        if (rule := guaranteed(score, right, precision=0.9)) is not None:
            ours += share(rule.score) / RUNS
            broken += precision_from(rule.score) < 0.9
        if (rule := guaranteed(score[:150], right[:150], precision=0.9)) is not None:
            halved += share(rule.score) / RUNS
    assert 0.01 <= broken / RUNS <= MOST
    assert ours >= 0.8 * share(best)
    assert ours >= 1.2 * halved


@pytest.mark.parametrize("rate", ["precision", "fpir"])
def test_where_the_target_is_just_missed_everywhere_a_rule_is_as_rare_as_said(rate):
    """A level that was too large, or not used, would show here."""
    g, made = np.random.default_rng(1), 0
    for _ in range(RUNS):
        score, right = g.normal(size=200), g.random(200) < 0.7999
        if rate == "precision":
            made += guaranteed(score, right, precision=0.8) is not None
        elif (rule := guaranteed(score, right, fpir=0.2)) is not None:
            made += norm.sf(rule.score) > 0.2
    assert 0.01 <= made / RUNS <= MOST


def test_a_probability_with_steps_accepts_no_score_below_the_one_that_was_tested(monkeypatch):
    g = np.random.default_rng(3)
    score, right = pairs(g, 400)
    with monkeypatch.context() as patched:
        patched.setattr(_match_probability, "CALIBRATORS", ("isotonic",))
        stepped = calibrate_scores(score, right).guarantee(precision=0.9)
    smooth = calibrate_scores(score, right).guarantee(precision=0.9)
    assert stepped.score >= smooth.score - 1e-12
    assert (stepped(score).answered <= smooth(score).answered).all()


def test_the_order_of_queries_does_not_matter_and_a_file_keeps_the_rule(tmp_path):
    g = np.random.default_rng(4)
    score, right = pairs(g, 300)
    order = g.permutation(300)
    rule = calibrate_scores(score, right).guarantee(precision=0.9)
    other = calibrate_scores(score[order], right[order]).guarantee(precision=0.9)
    assert other.score == pytest.approx(rule.score, abs=1e-6)
    rule.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    assert str(again) == str(rule)
    np.testing.assert_array_equal(again.scores.queries.score, rule.scores.queries.score)


def test_scores_that_say_nothing_decide_nothing():
    g = np.random.default_rng(5)
    score = g.normal(size=300)
    with pytest.warns(match="rank below"), pytest.raises(InputError, match="guaranteed|decides"):
        calibrate_scores(score, -score + 0.1 * g.normal(size=300) > 0.5).guarantee(precision=0.9)


def test_too_few_comparisons_are_counted_among_all_queries():
    score, right = pairs(np.random.default_rng(0), 400)
    with pytest.raises(InputError, match=rf"299 .*there are {(~right).sum()}.*Calibrate"):
        calibrate_scores(score, right).guarantee(fmr=0.01)


def test_a_single_number_is_answered_with_the_list_to_pass():
    rule = calibrate_scores(*pairs(np.random.default_rng(0), 300)).guarantee(precision=0.8)
    with pytest.raises(InputError, match=r"scores is empty.*one query or more"):
        calibrate_scores([], [])
    with pytest.raises(InputError, match=r"pass \[Q, k\] for kind='similarity'\."):
        calibrate_scores(np.zeros((3, 2, 2)), np.ones((3, 2)))
    with pytest.raises(InputError, match="relevant has 2 .*3 queries: pass one for each"):
        calibrate_scores([0.1, 0.2, 0.3], [1, 0])
    with pytest.raises(InputError, match=r"scores is 1\.7.*\[Q, k\] .*score \[1\.7\]"):
        rule(1.7)
    assert len(rule([1.7]).answered) == 1
