"""Scores at the call are compared with those that calibrated: another scale is noticed."""

from __future__ import annotations

import copy
import pickle
import warnings
from threading import Thread

import numpy as np
import pytest
from scipy.stats import ks_2samp

from laplace_metric._utils.validation import as_path
from laplace_metric.calibration import Rule, ScoreCalibration, calibrate_scores
from laplace_metric.calibration.scores._score_scale import (
    CHANGES,
    MOST,
    RECENT,
    ROOTS,
    ScoreScale,
    _log_chance,
    explanation,
    gap,
)
from laplace_metric.errors import FileFormatError, InputError, ScoresWarning
from tests.saved_files import of_version, rewrite


def pairs(seed, n):
    """Cosines of judged pairs, 70 % of which match."""
    g = np.random.default_rng(seed)
    right = g.random(n) < 0.7
    score = np.where(right, g.normal(0.82, 0.07, n), g.normal(0.66, 0.09, n))
    return np.clip(score, 0.01, 0.9999), right


def said(call):
    """What a call says of the distribution: an error or a warning; empty for nothing."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            call()
        except InputError as error:
            return str(error)
    return " ".join(str(w.message) for w in found if w.category is ScoresWarning)


@pytest.fixture(scope="module")
def rule():
    return calibrate_scores(*pairs(0, 600)).guarantee(precision=0.9)


@pytest.mark.parametrize(
    ("change", "n", "cause"),
    [
        (lambda c: 100 * c, 10, "a hundredth of them fits, as of per cent"),
        (lambda c: (1 + c) / 2, 100, "2 s - 1 of them fits"),
        (lambda c: 1 - c, 20, "1 - s of them fits"),
        (lambda c: 2 - 2 * c, 40, "1 - s / 2 of them fits"),
        (lambda c: -c, 20, "they fit with the other sign"),
        (np.log, 20, "exp(s) of them fits"),
        (lambda c: np.log(c / (1 - c)), 40, "1 / (1 + exp(-s)) of them fits"),
        (lambda c: 1 / (1 + np.exp(-c)), 100, "log(s / (1 - s)) of them fits"),
    ],
)
def test_another_scale_is_noticed_and_its_cause_named(rule, change, n, cause):
    score, right = pairs(1, 3_000)
    told = said(lambda: rule(change(score[:n])))
    assert cause in told
    assert f"(new queries: {n})" in told
    assert "those that calibrated 0.39" in told
    for ask in (rule.scores.probability, lambda s: rule.scores.keep_relevant(s, 0.3)):
        assert cause in said(lambda ask=ask: ask(change(score[:n])))
    assert not said(lambda: rule(score))
    assert right[rule(score).answered].mean() >= 0.9


def test_rounded_scores_on_another_scale_are_noticed_too():
    """Their ties are those of the calibration, and no copies."""
    score, right = pairs(0, 600)
    calibration = calibrate_scores(score.round(1), right)
    new = pairs(1, 300)[0].round(1)
    assert not said(lambda: calibration.probability(new))
    assert "2 s - 1" in said(lambda: calibration.probability((1 + new) / 2))
    assert not said(lambda: calibration.probability(new.astype(np.float32)))
    probe = np.full(300, 0.95)  # one query, again and again
    assert not said(lambda: calibrate_scores(score, right).probability(probe))


def test_a_change_that_none_of_the_known_undoes_is_told_without_a_cause(rule):
    new = pairs(1, 300)[0]
    assert "no common change of scale explains it" in said(lambda: rule(new**3 - 0.2))


def test_another_unit_is_an_error_for_one_query_too(rule):
    with pytest.raises(InputError, match=r"scores of first.*90 to 90 .*hundredth"):
        rule([90.0])
    distances = calibrate_scores(100 * (1 - pairs(0, 600)[0]), pairs(0, 600)[1], kind="distance")
    with pytest.raises(InputError, match="those that calibrated"):
        distances.probability(-100.0 - np.arange(10))
    with pytest.warns(ScoresWarning, match="900 to 909"):  # far hits are not answered
        assert distances.probability(900.0 + np.arange(10)).max() < 0.01


def test_worse_scores_than_ever_are_no_error(rule):
    """Queries without a match come: they are told where they are many, and not answered."""
    assert not rule([-0.5]).answered.any()
    score = np.where(np.arange(500) % 5 < 2, pairs(2, 500)[0] - 0.5, pairs(1, 500)[0])
    with pytest.warns(ScoresWarning, match="share without.*match"):
        assert rule(score).answered.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rule.scores.open_set_fraction(score).estimate > 0.4
        unseen = rule.scores.with_new_classes(score, np.arange(500))
    assert len(unseen.queries.unseen) == 500


def test_scores_of_the_same_search_pass_without_a_word():
    """With ties, copies, heavy tails, few queries, and one by one."""
    heard = []
    for seed in range(48):
        g = np.random.default_rng(seed)
        n, new = int(g.choice([20, 40, 100, 600])), int(g.choice([1, 5, 20, 300, 5_000]))
        kind = ("plain", "rounded", "heavy", "copies")[seed % 4]
        score, right = pairs(seed, n)
        asked = pairs(10_000 + seed, max(new // 20, 1) if kind == "copies" else new)[0]
        if kind == "rounded":
            score, asked = score.round(1), asked.round(1)
        elif kind == "heavy":
            score, asked = score + g.standard_cauchy(n), asked + g.standard_cauchy(len(asked))
        elif kind == "copies":
            asked = np.repeat(asked, 20)
        calls = asked[:, None] if seed % 3 == 0 and new < 100 else [asked]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibration = calibrate_scores(score, right, kind="score")
        heard += [said(lambda s=s, ask=calibration.probability: ask(s)) for s in calls]
    assert not any(heard)


def test_queries_one_by_one_are_compared_together(rule):
    rule = copy.deepcopy(rule)
    score = 1 - pairs(1, 2 * RECENT[1])[0]
    told = [bool(said(lambda s=s: rule([s]))) for s in score]
    assert np.flatnonzero(told).tolist() == [19, 99, 119, 199]
    same = copy.deepcopy(rule)
    assert not any(said(lambda s=s: same([s])) for s in pairs(1, 200)[0])
    assert not any(said(lambda: same([0.7])) for _ in range(200))  # one probe, again and again


def test_threads_lose_no_query(rule):
    scale = pickle.loads(pickle.dumps(rule.scores.scale))
    found = []
    row = np.ones((1, 1))

    def many():
        found.extend(x for _ in range(500) if (x := scale.recent.add(row)) is not None)

    threads = [Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(x) for x in found].count(RECENT[1]) == 20
    assert [len(x) for x in found].count(RECENT[0]) == 20


def test_two_scorers_that_are_exchanged_are_noticed():
    g = np.random.default_rng(0)

    def drawn(n):
        right = g.random((n, 1)) < 0.7
        return g.normal(size=(n, 1, 2)) + right[..., None] * [2, 1], right

    calibration = calibrate_scores(*drawn(600), kind=("score", "score"))
    score = drawn(300)[0]
    assert not said(lambda: calibration.probability(score))
    with pytest.warns(ScoresWarning, match=r"scores\[..., 0\].*0 and 1.*exchanged"):
        calibration.probability(score[..., ::-1])


def test_evidence_on_another_scale_is_named():
    g = np.random.default_rng(0)
    score, right = pairs(0, 600)
    calibration = calibrate_scores(score, right, evidence={"age": g.random(600)})
    new = pairs(1, 100)[0]
    assert not said(lambda: calibration.probability(new, age=g.random(100)))
    with pytest.warns(ScoresWarning, match="age of first hits.*calibrate on queries"):
        calibration.probability(new, age=100 * g.random(100))


@pytest.mark.parametrize("unit", [365.0, -365.0])
def test_evidence_of_another_unit_is_named_for_one_query_too(unit):
    g = np.random.default_rng(0)
    score, right = pairs(0, 600)
    age = g.exponential(10, 601)
    calibration = calibrate_scores(score, right, evidence={"age": age[:600]})
    for usual in (age[600], 2 * age.max(), -age.max()):
        assert not said(lambda usual=usual: calibration.probability([0.8], age=[usual]))
    with pytest.warns(ScoresWarning, match=r"age of .*all that calibrated"):
        calibration.probability([0.8], age=[unit * 10])
    with pytest.warns(ScoresWarning, match="age of.*first hits"):
        calibration.probability([0.8] * 3, age=[unit * 10, age[0], unit * 12])
    assert not said(lambda: calibration.probability([0.8] * 3, age=[unit * 10, age[0], age[1]]))


def test_a_few_scores_on_another_scale_are_counted(rule):
    """A tenth in per cent is too few for a test of the whole distribution."""
    score = pairs(1, 300)[0]
    mixed = np.where(np.arange(300) % 10 == 0, 100 * score, score)
    told = said(lambda: rule(mixed))
    assert "scores of 30 of 300 first hits are" in told
    assert "better than all that calibrated (0.39" in told
    assert not said(lambda: rule(np.where(np.arange(300) < 3, 100 * score, score)))
    distances = calibrate_scores(1 - pairs(0, 600)[0], pairs(0, 600)[1], kind="distance")
    assert "30 of 300" in said(
        lambda: distances.probability(np.where(mixed > 1, -score, 1 - score))
    )
    assert not said(lambda: distances.probability(np.where(mixed > 1, 2 + score, 1 - score)))
    probe = np.where(np.arange(300) % 10 == 0, 1.5, score)  # one query, thirty times
    assert not said(lambda: rule(probe))
    equal = np.where(np.arange(600) % 3 == 0, np.float32(0.99999994), pairs(0, 600)[0])
    of_ones = calibrate_scores(equal, pairs(0, 600)[1] | (equal > 0.999))
    new = np.where(np.arange(300) % 3 == 0, np.float32(1.0000001), score)
    assert not said(lambda: of_ones.probability(new))


def test_the_best_of_both_samples_are_all_new_with_the_chance_that_is_computed():
    g = np.random.default_rng(0)
    n, m, j = 30, 20, 3
    drawn = g.random((20_000, n + m)).argsort(1)
    found = float((drawn[:, :j] < n).all(1).mean())
    assert np.exp(_log_chance(j, n, m)) == pytest.approx(found, abs=0.015)
    assert _log_chance(1, 1, 400) == pytest.approx(np.log(1 / 401))


def test_lists_that_each_divides_by_its_largest_score_are_no_copies():
    """Their first hits are all 1, as of one query that comes again and again."""
    g = np.random.default_rng(0)

    def drawn(n):
        score = -np.sort(-(g.normal(0.7, 0.08, (n, 1)) + g.normal(0, 0.06, (n, 5))), 1)
        return score, g.random((n, 5)) < 1 / (1 + np.exp(-25 * (score - 0.72)))

    calibration = calibrate_scores(*drawn(600))
    score = drawn(200)[0]
    assert not said(lambda: calibration.probability(score))
    assert not said(lambda: calibration.probability(np.repeat(score[:1], 200, 0)))
    least = score.min(1, keepdims=True)
    for scaled in (score / score[:, :1], (score - least) / (score[:, :1] - least)):
        assert "are 1 to 1 (new queries: 200)" in said(lambda s=scaled: calibration.probability(s))
        alone = copy.deepcopy(calibration)
        heard = [bool(said(lambda s=s, ask=alone: ask.probability([s]))) for s in scaled]
        assert np.flatnonzero(heard)[0] == RECENT[0] - 1
        padded = np.column_stack([scaled, np.full(200, -np.inf)])
        assert "are 1 to 1" in said(lambda s=padded: calibration.probability(s))


def test_queries_of_groups_are_as_many_as_their_groups():
    """A session is alike in itself: one of 100 queries is one draw."""

    def sessions(seed, n, size):
        g = np.random.default_rng(seed)
        right = g.random(n * size) < 0.7
        own = np.repeat(g.normal(size=n), size)
        return own + 0.3 * g.normal(size=n * size) + 0.5 * right, right, np.arange(n * size) // size

    score, right, group = sessions(0, 60, 10)
    calibration = calibrate_scores(score, right, kind="score", groups=group)
    assert calibration.scale.alike > 0.7
    assert calibration.scale.worth < 80
    for seed in range(1, 40):
        assert not said(lambda seed=seed: calibration.probability(sessions(seed, 1, 100)[0]))
    with pytest.raises(InputError, match="of another distribution"):
        calibration.probability(100 + sessions(1, 5, 20)[0])


def test_the_kind_of_scores_may_be_said_again(rule):
    score = pairs(1, 20)[0]
    assert rule(score, kind="similarity").answered.any()
    for ask in (rule, rule.scores.probability, rule.scores.open_set_fraction):
        with pytest.raises(InputError, match="kind='distance'.*are kind='similarity'"):
            ask(score, kind="distance")
    with pytest.raises(InputError, match="kind='distance'"):
        rule.scores.keep_relevant(score, 0.3, kind="distance")
    with pytest.raises(InputError, match="kind='distance'"):
        rule.scores.with_new_classes(score, np.arange(20), kind="distance")
    with pytest.raises(InputError, match=r"kind=\('score', 'score'\)"):
        rule(score, kind=["score", "score"])
    with pytest.raises(InputError, match="other than.*scores, kind"):
        calibrate_scores(*pairs(0, 60), evidence={"kind": np.zeros(60)})


VALUES = "scale.values"
"""Name of the scores in a file."""


def test_a_file_keeps_the_scale(rule, tmp_path):
    path = tmp_path / "rule.safetensors"
    rule.save(path)
    again = Rule.load(path)
    np.testing.assert_array_equal(again.scores.scale.values, rule.scores.scale.values)
    assert again.scores.scale.worth == rule.scores.scale.worth == MOST
    with pytest.raises(InputError, match="per cent"):
        again(100 * pairs(1, 20)[0])
    of_version(path, "scores", 3)
    with pytest.raises(FileFormatError, match="version 3.*reads 5"):
        Rule.load(path)
    rule.scores.save(path)
    rewrite(path, "scores", lambda _, arrays: arrays.update({VALUES: -arrays[VALUES]}))
    with pytest.raises(FileFormatError, match="scale.values.*ascending order"):
        ScoreCalibration.load(path)
    rule.scores.save(path)
    rewrite(path, "scores", lambda _, arrays: arrays.pop(VALUES))
    with pytest.raises(FileFormatError, match="scale"):
        ScoreCalibration.load(path)


def test_many_scores_are_stored_as_quantiles_with_their_range():
    score = np.random.default_rng(0).normal(size=(10_000, 2))
    scale = ScoreScale.of(score, None)
    assert scale.values.shape == (MOST, 2)
    np.testing.assert_array_equal(scale.values[[0, -1]], [score.min(0), score.max(0)])
    assert gap(scale.values[:, 0], score[:, 0]) < 1 / MOST


@pytest.mark.parametrize("seed", range(4))
def test_the_gap_that_is_allowed_is_rarely_exceeded(seed):
    """The bound is above Kolmogorov's exact level."""
    g = np.random.default_rng(seed)
    scale = ScoreScale.of(g.normal(size=(200, 1)), None)
    new = g.normal(size=50)
    largest = scale._largest_gap(new, 0, 0.01)
    assert ks_2samp(new, scale.values[:, 0]).statistic < largest
    n, m = 50, 200
    shifted = scale.values[:, 0] + 0.5
    assert gap(shifted, scale.values[:, 0]) > scale._largest_gap(shifted, 0, 0.01)
    assert largest == pytest.approx((np.log(200) / 2 * (1 / n + 1 / m)) ** 0.5)


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_undone_by_what_it_advises(name):
    """Of numbers in (0, 1) whose change is again a distribution of its own."""
    new = np.random.default_rng(0).beta(2, 5, 200)
    old = CHANGES[name](new)
    if gap(new, old) > 0.3:
        best = explanation(new, old, CHANGES)
        assert gap(CHANGES[best](new), old) == 0
    assert explanation(new, new, CHANGES) is None
    assert explanation(np.square(new), new, [ROOTS]) == ROOTS


def test_a_path_may_begin_with_the_home_folder(rule, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    rule.save("~/rule.safetensors")
    assert (tmp_path / "rule.safetensors").is_file()
    assert str(Rule.load("~/rule.safetensors")) == str(rule)
    assert str(as_path("path", "~nobody-of-this-name/x")) == "~nobody-of-this-name/x"
