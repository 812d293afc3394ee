"""``GuardClassifier``: scikit-learn's checks, answers of a ``Guard``, labels of abstentions."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from laplace_metric import Guard, GuardClassifier
from laplace_metric.errors import FewQueriesWarning, InputError, UndefinedMetricWarning
from laplace_metric.guard_classifier import abstain_label_of

EXPECTED = {
    "check_classifiers_train": "predict is not the likeliest class of predict_proba where it "
    "abstains",
}
"""Checks that the concept forbids, and why."""
SKIPPED = {"check_array_api_input"}  # of arrays of other libraries; asks for SCIPY_ARRAY_API
N_CHECKS = 50


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x, y


@pytest.fixture(scope="module")
def fitted(digits):
    x, y = digits
    return GuardClassifier(precision=0.9).fit(x[:900], y[:900])


def test_checks_of_scikit_learn_pass_but_for_one():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            GuardClassifier(), expected_failed_checks=EXPECTED, on_fail=None, on_skip=None
        )
    other = {r["check_name"]: r for r in results if r["status"] != "passed"}
    assert set(other) == SKIPPED | set(EXPECTED), other
    failed = str(other["check_classifiers_train"]["exception"])
    assert "(ACTUAL), -1 (DESIRED)" in failed  # nothing but abstentions differs
    assert sum(r["status"] == "passed" for r in results) > N_CHECKS


def test_answers_are_those_of_a_guard(digits, fitted):
    x, y = digits
    expected = Guard(x[:900], y[:900], precision=0.9).ask(x[900:])
    answers, asked = fitted.ask(x[900:]), x[900:]
    assert fitted.guaranteed_
    assert answers.label.tolist() == expected.label.tolist()
    np.testing.assert_array_equal(answers.reason, expected.reason)
    np.testing.assert_allclose(answers.probability, expected.probability)
    assert 0.5 < answers.answered.mean() < 1
    found = fitted.predict(asked)
    np.testing.assert_array_equal(found, np.where(answers.answered, answers.label, -1).astype(int))
    assert found.dtype == y.dtype
    np.testing.assert_array_equal(fitted.answered(asked), answers.answered)
    right = (found == y[900:])[answers.answered].mean()
    assert fitted.score(asked, y[900:]) == pytest.approx(right, abs=0)
    p = fitted.predict_proba(asked)
    np.testing.assert_allclose(p.sum(1), 1)
    sure = answers.answered
    np.testing.assert_array_equal(p.argmax(1)[sure], answers.label[sure].astype(int))


def test_weights_of_rows_count_in_the_score(digits, fitted):
    x, y = digits
    asked, truth = x[900:], y[900:].copy()
    answered = np.flatnonzero(fitted.answered(asked))
    truth[answered[0]] = (fitted.predict(asked)[answered[0]] + 1) % 10
    weight = np.zeros(len(truth))
    weight[answered[:2]] = 1, 3
    assert fitted.score(asked, truth, weight) == pytest.approx(
        0.75 * (fitted.predict(asked)[answered[1]] == truth[answered[1]])
    )
    with pytest.raises(ValueError, match="inconsistent.*samples"):
        fitted.score(asked, truth[:-1])


def test_no_answer_has_no_score(fitted):
    foreign = 1e3 * np.ones((4, 64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fitted.predict(foreign).tolist() == [-1] * 4
    with pytest.warns(UndefinedMetricWarning, match="no row.*answered"):
        assert np.isnan(fitted.score(foreign, [0] * 4))


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.UnfamiliarQueriesWarning")
@pytest.mark.parametrize(("n", "precision"), [(8, 0.6), (60, 0.9)])
def test_few_rows_guarantee_nothing_and_say_so(n, precision, digits):
    x, y = digits
    kept = y < (2 if n == 8 else 10)
    x, y = x[kept], y[kept]
    told = f"precision={precision} cannot be guaranteed: .*estimate of the probability"
    with pytest.warns(FewQueriesWarning, match=told):
        few = GuardClassifier(precision=precision).fit(x[:n], y[:n])
    assert not few.guaranteed_
    assert (few.guard_ is None) == (n == 8)
    probability, answered = few.ask(x[n:]).probability, few.answered(x[n:])
    assert 0 < answered.sum() < len(answered)
    assert probability[answered].min() >= precision - 1e-9
    if few.guard_ is None:  # votes, which know nothing of unfamiliar rows
        assert (probability[~answered] < precision).all()
    else:
        reasons = few.ask(x[n:]).reason
        unfamiliar = few.guard_.index.search(x[n:], 1).unknown.numpy()
        np.testing.assert_array_equal(reasons == "unfamiliar", unfamiliar)
        assert set(reasons) == {"", "uncertain", "unfamiliar"}
    assert (few.predict(x[n:]) == few.abstain_label_).sum() == (~answered).sum()


def test_the_reason_counts_the_rows_that_are_missing(digits):
    x, y = digits
    with pytest.warns(FewQueriesWarning, match=r"about [\d,]+.* more rows"):
        GuardClassifier(precision=0.9).fit(x[:80], y[:80])


NAMES = np.array(["no", "yes"])


@pytest.mark.parametrize(
    ("asked", "classes", "expected"),
    [
        (None, np.array([0, 1]), -1),
        (None, np.array([-3, 2]), -4),
        (None, np.array([0.0, 1.0]), -1.0),
        (None, np.array([3, 255], np.uint16), 256),
        (None, NAMES, "abstain"),
        (None, NAMES.astype(object), None),
        (None, np.array([False, True]), None),
        ("?", NAMES, "?"),
        (9, np.array([0, 1], np.int8), 9),
    ],
)
def test_labels_of_an_abstention(asked, classes, expected):
    found = abstain_label_of(asked, classes)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("asked", "classes", "message"),
    [
        (1, np.array([0, 1]), "abstain_label=1 is a class of y"),
        ("no", NAMES, "abstain_label='no' is a class of y"),
        (None, np.array(["abstain", "go"]), "abstain_label='abstain' is a class of y"),
        (-1, NAMES, "abstain_label=-1, classes are <U3: pass a string"),
        ("?", np.array([0, 1]), r"abstain_label='\?', classes are int64: pass a number"),
        (0.5, np.array([0, 1]), "pass a number of int64"),
        (-1, np.array([0, 1], np.uint8), "pass a number of uint8"),
        (300, np.array([0, 1], np.uint8), "pass a number of uint8"),
        (-1, np.array([False, True]), "classes are bool: pass None"),
    ],
)
def test_a_label_that_cannot_stand_for_an_abstention(asked, classes, message):
    with pytest.raises(InputError, match=message):
        abstain_label_of(asked, classes)


@pytest.mark.parametrize("kind", [str, object, bool])
def test_other_types_of_classes(kind, digits):
    x, y = digits
    classes = (y > 4) if kind is bool else np.array([f"class {each}" for each in y], dtype=kind)
    classifier = GuardClassifier(precision=0.9).fit(x[:600], classes[:600])
    answered, found = classifier.answered(x[900:1200]), classifier.predict(x[900:1200])
    assert 0 < (~answered).sum() < 300
    assert set(found[~answered].tolist()) == {"abstain" if kind is str else None}
    assert (found[answered] == classes[900:1200][answered]).mean() > 0.9
    assert found.dtype.kind == ("U" if kind is str else "O")


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_tools_of_scikit_learn(digits):
    x, y = digits[0][:600], digits[1][:600]
    search = GridSearchCV(GuardClassifier(), {"precision": [0.6, 0.9]}, cv=2).fit(x, y)
    low, high = search.cv_results_["mean_test_score"]
    assert 0.6 < low <= high
    pipeline = make_pipeline(StandardScaler(), GuardClassifier(precision=0.8))
    assert (cross_val_score(pipeline, x, y, cv=2) > 0.8).all()
    pipeline.fit(x, y)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict(x), pipeline.predict(x))
    assert clone(pipeline).get_params()["guardclassifier__precision"] == 0.8


def test_a_model_needs_a_statement(digits):
    x, y = digits[0][:300], digits[1][:300]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)).double()
    for stated in (None, True):
        with pytest.raises(InputError, match=f"trained_on_items={stated}.*rows.*model"):
            GuardClassifier(model, trained_on_items=stated).fit(x, y)
    classifier = GuardClassifier(model, precision=0.6, trained_on_items=False).fit(x, y)
    expected = Guard(x, y, model=model, precision=0.6, trained_on_items=False)
    new = digits[0][300:400]
    assert classifier.ask(new).label.tolist() == expected.ask(new).label.tolist()


def test_wrong_settings_are_errors_with_few_rows_too(digits):
    x, y = digits
    for settings in ({"distance": "cosine"}, {"structure": "block"}, {"precision": 1.5}):
        with pytest.raises(InputError, match=next(iter(settings))):
            GuardClassifier(**settings).fit(x[:9], y[:9])


def test_names_of_other_classes_are_answered_with_the_right_one(fitted):
    with pytest.raises(TypeError, match="metric.*distance='arccos' or 'euclidean'"):
        GuardClassifier(metric="cosine")
    with pytest.raises(TypeError, match="did you mean.*'precision'"):
        GuardClassifier(precison=0.9)
    with pytest.raises(AttributeError, match=r"decision_function.*call predict_proba\(X\)"):
        fitted.decision_function  # noqa: B018
    assert not hasattr(GuardClassifier(), "classes_")


@pytest.mark.parametrize(
    ("given", "same"),
    [({"random_state": 5}, {"seed": 5}), ({"open_set_fraction": 0.2}, {"open_set_fraction": 0.2})],
)
def test_settings_reach_the_guard(given, same, digits):
    x, y = digits[0][:300], digits[1][:300]
    rule = GuardClassifier(precision=0.8, **given).fit(x, y).guard_.rule
    assert rule.value == Guard(x, y, precision=0.8, **same).rule.value
    assert rule.value != GuardClassifier(precision=0.8).fit(x, y).guard_.rule.value


@pytest.mark.parametrize(
    ("dtype", "classes", "label"),
    [
        ("uint8", (0, 3), 4),
        ("uint8", (0, 255), 1),
        ("int8", (-128, 5), 6),
        ("int8", (-128, 127), 0),
        ("int64", (0, 1), -1),
        ("float32", (0.0, 1.0), -1.0),
    ],
)
def test_the_label_of_abstentions_has_the_type_of_the_classes(dtype, classes, label):
    found = abstain_label_of(None, np.array(classes, dtype))
    assert found == label
    assert np.array([found], dtype)[0] == found


def test_classes_that_leave_no_value_need_a_wider_type():
    with pytest.raises(InputError, match="int8.*wider type"):
        abstain_label_of(None, np.arange(-128, 128).astype("int8"))


def test_no_seed_is_the_seed_of_every_run(digits):
    x, y = (one[:300] for one in digits)
    ways = [GuardClassifier(random_state=seed).fit(x, y) for seed in (None, 0, 1)]
    none, zero, one = (way.predict_proba(digits[0][300:400]) for way in ways)
    assert np.array_equal(none, zero)
    assert not np.array_equal(none, one)
