"""scikit-learn's own checks, and that its tools find what the package says."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration.labels._votes import label_evidence
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.search.estimators import (
    LaplaceMetricTransformer,
    MatchClassifier,
    selective_risk_scorer,
)

SKIPPED = {"check_array_api_input"}  # of arrays of other libraries; asks for SCIPY_ARRAY_API


@pytest.fixture(scope="module")
def iris():
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return x[order], np.array(["setosa", "versicolor", "virginica"])[y[order]]


@pytest.mark.parametrize("kind", [LaplaceMetricTransformer, MatchClassifier])
def test_every_check_of_scikit_learn(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(kind(), on_fail=None, on_skip=None)
    other = {r["check_name"]: r["exception"] for r in results if r["status"] != "passed"}
    assert set(other) <= SKIPPED, other
    assert len(results) > 40


def test_the_transformer_says_what_an_embedder_says(iris):
    x, y = iris
    settings = {"distance": "euclidean", "hessian": "positives"}
    expected = LaplaceEmbedder.from_embeddings(x, y, **settings)(x)
    found = LaplaceMetricTransformer().fit(x, y).transform(x)
    numbers = torch.stack([expected.uncertainty, expected.epistemic], 1)
    np.testing.assert_allclose(found, torch.cat([expected.mean, numbers], 1), rtol=1e-6)


@pytest.mark.parametrize(("output", "columns"), [("both", 6), ("embedding", 4), ("numbers", 2)])
def test_columns_and_their_names(output, columns, iris):
    transformer = LaplaceMetricTransformer(output=output).set_output(transform="pandas")
    frame = transformer.fit(pd.DataFrame(iris[0], columns=list("abcd")), iris[1]).transform(
        pd.DataFrame(iris[0], columns=list("abcd"))
    )
    assert frame.shape == (150, columns)
    assert frame.columns.tolist()[-1] == ("embedding3" if output == "embedding" else "epistemic")


def test_probabilities_are_those_of_the_index(iris):
    x, y = iris
    classifier = MatchClassifier().fit(x[:100], y[:100])
    assert classifier.calibrated_
    probability = classifier.predict_proba(x[100:])
    result = classifier.index_.search(x[100:], k=1)
    of_answer = probability[np.arange(50), result.label]
    none = 1 - sum_of_labels(classifier, x[100:])
    np.testing.assert_allclose(of_answer, result.label_probability + none / 3, atol=1e-9)
    assert (classifier.predict(x[100:]) == y[100:]).mean() > 0.9


def sum_of_labels(classifier, x):
    """Of each query, the probabilities of all labels among its voting neighbours."""
    hits = classifier.index_.search(x, k=20).hits
    scores = classifier.index_.calibration.label_scores(hits)
    return np.where(scores > 0, scores, 0.0).sum(1)


def test_decisions_leave_room_for_none_of_the_classes(iris):
    x, y = iris
    classifier = MatchClassifier().fit(x[:100], y[:100])
    p = classifier.decision_function(x[100:])
    none = 1 - sum_of_labels(classifier, x[100:])
    np.testing.assert_allclose(1 - p.sum(1), none, atol=1e-9)
    np.testing.assert_allclose(classifier.predict_proba(x[100:]), p + none[:, None] / 3, atol=1e-9)
    rows = y != "setosa"
    two = MatchClassifier().fit(x[rows], y[rows])
    signed, probability = two.decision_function(x), two._label_probabilities(x)
    assert ((signed > 0) == (two.predict(x) == "virginica")).all()
    np.testing.assert_array_equal(np.abs(signed), probability.max(1))


def test_a_precision_is_that_of_another_class():
    with pytest.raises(TypeError, match=r"GuardClassifier\(precision=, abstain_label=\) abstains"):
        MatchClassifier(precision=0.9)


def test_the_selective_risk_is_the_area_below_its_curve(iris):
    """Written out: the mean error of the surest 5, 10, ..., 100 %, ties in all orders at once."""
    x, y = iris
    classifier = LogisticRegression(max_iter=1000).fit(x[:40], y[:40])
    p = classifier.predict_proba(x).round(1)  # ties

    class Rounded:
        classes_ = classifier.classes_

        def predict_proba(self, x):
            return p

    sure, wrong = p.max(1), classifier.classes_[p.argmax(1)] != y
    mean = np.array([wrong[sure == s].mean() for s in sure])[np.argsort(-sure)]
    shares = np.arange(20, 0, -1) / 20
    risk = [mean[: int(np.ceil(share * 150 - 1e-9))].mean() for share in shares]
    expected = -np.trapezoid(risk[::-1], shares[::-1]) / 0.95
    assert wrong.any()
    assert selective_risk_scorer(Rounded(), x, y) == pytest.approx(expected, abs=1e-12)
    grid = {"prior_precision": [1.0, 10.0]}
    search = GridSearchCV(MatchClassifier(), grid, scoring=selective_risk_scorer, cv=3).fit(x, y)
    assert -0.1 < search.best_score_ <= 0


def test_few_rows_vote_and_say_so(iris):
    x, y = iris
    with pytest.warns(LaplaceMetricWarning, match="not calibrated.*votes"):
        classifier = MatchClassifier().fit(x[:9], y[:9])
    assert not classifier.calibrated_
    np.testing.assert_allclose(classifier.predict_proba(x).sum(1), 1)
    assert set(classifier.predict(x)) <= set(y)


def test_pipeline_grid_search_and_clone(iris):
    x, y = iris
    pipeline = make_pipeline(StandardScaler(), LaplaceMetricTransformer(), MatchClassifier())
    grid = {"matchclassifier__prior_precision": [0.1, 10.0]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.85
    again = clone(search.best_estimator_)
    assert again.get_params()["matchclassifier__folds"] == 5
    assert cross_val_score(again, x, y, cv=3).mean() == pytest.approx(search.best_score_)


@pytest.mark.parametrize("seed", [-1, np.random.RandomState(0)])
def test_a_seed_that_is_none_is_refused_and_no_seed_is_the_first(seed, iris):
    x, y = iris
    with pytest.raises(InputError, match="random_state="):
        MatchClassifier(random_state=seed).fit(x, y)
    none, zero = (MatchClassifier(random_state=one).fit(x, y).predict_proba(x) for one in (None, 0))
    assert np.array_equal(none, zero)


@pytest.mark.parametrize("n", [12, 15, 18])
def test_few_rows_vote_with_their_nearest_and_are_not_sure(n, iris):
    """As many voters as rows would give every query to the largest class."""
    x, y = iris
    right, nearest = [], []
    for start in range(0, 100, 10):
        rows = np.arange(start, start + n)
        rest = np.setdiff1d(np.arange(len(x)), rows)
        if len(set(y[rows])) < 3:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LaplaceMetricWarning)
            found = MatchClassifier().fit(x[rows], y[rows])
        assert found.index_.calibration is None
        p = found.predict_proba(x[rest])
        few = max(1, np.unique(y[rows], return_counts=True)[1].min() // 2)
        hits = found.index_.search(x[rest], few).hits
        _, share, _, _ = label_evidence(hits.distance, hits.voted.labels[:, :few])
        own = np.full_like(p, 1 / p.shape[1] / (few + 1))  # one vote of few + 1 is of all classes
        for row, (labels, shares) in enumerate(zip(hits.voted.labels, share, strict=True)):
            for label in np.unique(labels[:few]):
                own[row, label] += shares[labels[:few] == label][0] * few / (few + 1)
        np.testing.assert_allclose(p, own, rtol=1e-6)
        assert p.max() < 0.95
        np.testing.assert_allclose(p.sum(1), 1)
        right.append(found.score(x[rest], y[rest]))
        nearest.append(KNeighborsClassifier(1).fit(x[rows], y[rows]).score(x[rest], y[rest]))
    assert np.mean(right) > np.mean(nearest) - 0.03
