"""Reports of labelled queries: counts are those of a loop, and ends those of an exact test."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.datasets import load_digits

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import FewQueriesWarning, InputError, LabelError, NotFittedError
from laplace_metric.plots import outcome_plot
from laplace_metric.search import AnswerReport

pytestmark = pytest.mark.usefixtures("quick")
X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER].astype(np.float32), np.array([f"digit {y}" for y in Y[ORDER]])
KNOWN = Y != "digit 9"
ITEMS = np.flatnonzero(KNOWN)[:400]
NEW = np.setdiff1d(np.arange(1000, len(X)), ITEMS)  # with a class that no item has


@pytest.fixture(scope="module", params=[False, True], ids=["together", "by class"])
def guard(request):
    return Guard(X[ITEMS], Y[ITEMS], precision=0.8, by_class=request.param)


def test_a_report_counts_what_the_guard_answers(guard):
    report, answers = guard.evaluate(X[NEW], Y[NEW]), guard.ask(X[NEW])
    found = guard.index.search(X[NEW], 1)
    assert report.label.tolist() == found.label.tolist()
    assert report.reason.tolist() == answers.reason.tolist()
    np.testing.assert_allclose(report.probability, answers.probability)
    truth = [y if y != "digit 9" else None for y in Y[NEW]]
    assert report.truth.tolist() == truth
    given = answers.answered
    right = answers.label[given] == Y[NEW][given]
    assert report.coverage == given.mean()
    assert report.right_share == right.mean()
    ends = binomtest(int(right.sum()), len(right), alternative="greater").proportion_ci(0.95)
    assert report.lower == pytest.approx(ends.low)
    assert report.reasons == Counter(reason or "answered" for reason in answers.reason)
    assert {one.name for one in report.classes} == set(truth)
    for one in report.classes:
        told = [(a, t) for a, t in zip(answers.label, truth, strict=True) if a == one.name and a]
        assert one.given == len(told)
        assert one.right == sum(a == t for a, t in told)
        assert one.queries == truth.count(one.name)
        assert one.answered == sum(t == one.name for t, g in zip(truth, given, strict=True) if g)
        wrong = Counter(t for a, t in told if a != t)
        assert sorted(one.really.values()) == sorted(n for _, n in wrong.most_common(3))
        assert all(wrong[name] == n for name, n in one.really.items())
        if told:
            exact = binomtest(one.right, one.given, alternative="greater").proportion_ci(0.95)
            assert one.lower == pytest.approx(exact.low)
    shares = [one.right / one.given if one.given else 2 for one in report.classes]
    assert shares == sorted(shares)


def test_a_report_is_printed_and_drawn(guard):
    report = guard.evaluate(X[NEW], Y[NEW])
    told = str(report)
    assert f"answers {report.coverage:.1%} of {len(NEW)} queries" in told
    assert "0.8 was guaranteed" in told
    assert all(str(one) in told for one in report.classes)
    assert report.classes[0].name is not None
    assert f"{str(report.classes[0])[:40]}" in repr(report)
    assert "classes: print(report) has all" in repr(report)
    figure = report.plot()
    first, second = figure.axes
    share, height = first.lines[0].get_data()
    last = report.reason == "unfamiliar"
    order = np.argsort(1 - report.probability + last, kind="stable")
    assert (share[-1], height[-1]) == (1, report.right.mean())
    half = len(order) // 2
    at = np.searchsorted(share, half / len(order))
    n = round(share[at] * len(order))
    assert height[at] == pytest.approx(report.right[order[:n]].mean())
    assert f"(n = {len(NEW)})" in second.get_legend().get_texts()[1].get_text()


def test_what_cannot_be_evaluated_is_told(guard):
    with pytest.raises(LabelError):
        guard.evaluate(X[NEW])
    with pytest.warns(FewQueriesWarning):
        strict = guard.at(0.9999)
    with pytest.raises(InputError, match="cannot be guaranteed"):
        strict.evaluate(X[NEW], Y[NEW])
    plain = LaplaceEmbedder.from_embeddings(X[:100], Y[:100]).index(X[:100], Y[:100])
    with pytest.raises(NotFittedError, match="not calibrated"):
        plain.evaluate_answers(X[NEW], Y[NEW])
    with pytest.raises(InputError, match=r"probability.*\[0\]"):
        outcome_plot([], [])
    with pytest.raises(InputError, match=r"right \[2\]"):
        outcome_plot([0.5], [True, False])


def test_nothing_answered_has_no_share():
    report = AnswerReport(*map(np.array, (["a"], ["a"], [0.4], ["uncertain"])))
    assert (report.coverage, report.right_share, report.lower) == (0, None, 0)
    assert str(report.classes[0]) == "none given; 0 of its 1 queries answered"
    assert str(report).startswith("answers 0.0% of 1 queries.")


def test_no_label_is_no_right_answer_of_a_query_whose_label_no_item_has():
    label, truth = (np.array(each, dtype=object) for each in (["a", None], ["a", None]))
    report = AnswerReport(label, truth, np.array([0.9, 0.1]), np.array(["", ""]))
    assert report.right.tolist() == [True, False]
    assert report.right_share == 0.5
    assert {each.name: each.right for each in report.classes} == {"a": 1, None: 0}
    assert "of no class here  0 of 1 right" in str(report)
    assert "None" not in str(report)
