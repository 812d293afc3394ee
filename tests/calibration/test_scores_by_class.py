"""A precision of each class of scored answers: an imbalance is not hidden by the total."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np
import pytest
from scipy.stats import binomtest

from laplace_metric.calibration import ClassRule, Rule, ScoreCalibration, calibrate_scores
from laplace_metric.errors import FileFormatError, InputError, LaplaceMetricWarning

NAMES = np.array(["bag", "coat", "dress", "rare"])
SHARES = np.array([300, 300, 300, 1]) / 901


def drawn(g, n, k=1, shares=SHARES):
    """Draw scores [n, k], relevance and the label of the first hit; the rare one is wrong."""
    label = g.choice(4, n, p=shares)
    scores = np.sort(g.uniform(0.3, 1.0, (n, k)), 1)[:, ::-1]
    height = np.array([1.0, 0.97, 0.93, 0.2])[label]
    right = g.random((n, k)) < height[:, None] * scores**0.3
    return (scores, right, label) if k > 1 else (scores[:, 0], right[:, 0], label)


@pytest.fixture(scope="module")
def calibration():
    scores, right, label = drawn(np.random.default_rng(0), 3_000, shares=[0.3, 0.3, 0.3, 0.1])
    return calibrate_scores(scores, right, labels=NAMES[label])


def test_each_label_has_its_rule_and_rare_wrong_ones_are_not_answered(calibration):
    rule = calibration.guarantee_by_class(0.9)
    assert isinstance(rule, ClassRule)
    assert "rare" in rule.refused
    assert set(rule.rules) | set(rule.refused) == set(NAMES)
    scores, right, label = drawn(np.random.default_rng(1), 20_000, shares=[0.3, 0.3, 0.3, 0.1])
    answers = rule(scores, labels=NAMES[label])
    given = answers.label[answers.answered]
    assert set(given) == set(rule.rules)
    for name in rule.rules:
        own = answers.label == name
        assert right[own].mean() >= 0.9
        assert (calibration.probability(scores[own]) >= rule.rules[name].value).all()
    together = calibration.guarantee(precision=0.8)
    assert right[(NAMES[label] == "rare") & together(scores).answered].mean() < 0.4  # is hidden
    assert answers.answered.mean() == pytest.approx(rule.coverage, abs=0.03)


def test_the_rule_of_a_label_is_that_of_its_queries_alone():
    g = np.random.default_rng(2)
    scores, right, label = drawn(g, 2_000, shares=[0.25] * 4)
    calibration = calibrate_scores(scores, right, labels=label)
    queries, codes = calibration.queries, calibration.answers.codes
    place = dict(zip(scores, label, strict=True))
    assert [place[score] for score in queries.score] == codes.tolist()
    assert calibration.answers.classes.tolist() == [0, 1, 2, 3]
    rule = calibration.guarantee_by_class(0.8)
    assert {name: rule.rules[name].n_tested for name in rule.rules} == {
        name: int((codes == name).sum()) for name in rule.rules
    }


@pytest.mark.parametrize("cross_fit", [0, 5])
def test_lists_of_hits_take_labels_of_all_and_of_the_first(cross_fit, tmp_path):
    g = np.random.default_rng(3)
    scores, right, label = drawn(g, 1_500, k=4, shares=[0.3, 0.3, 0.3, 0.1])
    scores[:20], label = -np.inf, NAMES[label]
    right[:20] = False
    every = np.column_stack([label, np.full((1_500, 3), "other")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)  # 20 queries have no hit
        made = [
            calibrate_scores(scores, right, labels=labels, cross_fit=cross_fit)
            for labels in (label, every)
        ]
    first, both = (calibration.guarantee_by_class(0.8) for calibration in made)
    assert str(first) == str(both)
    assert first.proven == (cross_fit == 0)
    assert not first(scores[:20], labels=label[:20]).answered.any()
    first.save(tmp_path / "rule")
    again = Rule.load(tmp_path / "rule")
    assert isinstance(again, ClassRule)
    assert str(again) == str(first)
    expected = first(scores, labels=label).label.tolist()
    assert again(scores, labels=every).label.tolist() == expected
    made[0].save(tmp_path / "scores")
    loaded = ScoreCalibration.load(tmp_path / "scores")
    assert str(loaded.guarantee_by_class(0.8)) == str(first)
    with pytest.raises(FileFormatError):
        ScoreCalibration.load(tmp_path / "nothing")


def test_what_is_missing_is_told(calibration):
    scores, right, label = drawn(np.random.default_rng(0), 300)
    plain = calibrate_scores(scores, right)
    with pytest.raises(InputError, match=r"calibrate_scores\(scores, relevant, labels=labels\)"):
        plain.guarantee_by_class(0.9)
    with pytest.raises(InputError, match=r"labels.*int64.*\[299\].*whole number"):
        calibrate_scores(scores, right, labels=label[:-1])
    with pytest.raises(InputError, match="labels are float64"):
        calibrate_scores(scores, right, labels=label + 0.5)
    rule = calibration.guarantee_by_class(0.9)
    with pytest.raises(InputError, match="threshold of each.*labels="):
        rule(scores)
    with pytest.raises(InputError, match=r"none.*calibrated this rule.*'bag'"):
        rule(scores, labels=label)
    with pytest.raises(InputError, match="graph has one"):
        rule.export("rule.onnx")
    with pytest.raises(InputError, match="call rule"):
        rule.passed(scores)
    with pytest.raises(InputError, match="any class: 'rare'|any class: "):
        calibration.guarantee_by_class(0.999)
    unknown = rule(scores[:2], labels=["bag", "hat"])
    assert unknown.label[1] is None


def test_queries_with_other_labels_are_no_copies():
    g = np.random.default_rng(4)
    scores = np.tile(np.sort(g.uniform(0.3, 1, (200, 3)), 1)[:, ::-1], (2, 1))
    right, label = np.tile(g.random((200, 3)) < 0.5, (2, 1)), np.repeat(["a", "b"], 200)
    kept = calibrate_scores(scores, right, labels=label)
    assert len(kept.queries) == 400
    with pytest.warns(LaplaceMetricWarning, match="200 of 400.*copies"):
        fewer = calibrate_scores(scores, right, labels=np.full(400, "a"))
    assert len(fewer.queries) == len(fewer.answers.codes) == 200


def test_300_worlds_keep_the_precision_of_each_label_at_an_imbalance_of_1_to_300():
    """Estimand: the worst true precision of the answers with one label, known of each query."""
    broken: dict[str, list[bool]] = {"each": [], "all": []}
    height = np.array([1.0, 0.97, 0.93, 0.2])
    for seed in range(300):
        g = np.random.default_rng(seed)
        scores, right, label = drawn(g, 600)
        calibration = calibrate_scores(scores, right, labels=label)
        scores, _, label = drawn(g, 100_000)
        true = height[label] * scores**0.3
        for name in broken:
            with suppress(InputError):
                if name == "each":
                    answered = calibration.guarantee_by_class(0.8)(scores, labels=label).answered
                else:
                    answered = calibration.guarantee(precision=0.8)(scores).answered
                of = [true[answered & (label == c)] for c in range(4)]
                broken[name].append(min(own.mean() for own in of if len(own)) < 0.8)
    ends = {
        name: binomtest(sum(worlds), len(worlds)).proportion_ci(0.9, method="exact")
        for name, worlds in broken.items()
    }
    assert min(map(len, broken.values())) > 250
    assert ends["each"].high <= 0.05
    assert ends["all"].low > 0.9  # together they hide the rare one
