"""Guards of the precision of each class: a rare class is not hidden by the others."""

from __future__ import annotations

import copy
import warnings
from functools import cache

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.datasets import load_digits

from laplace_metric import Guard
from laplace_metric.calibration import ClassRule
from laplace_metric.errors import (
    FewQueriesWarning,
    InputError,
    LaplaceMetricWarning,
    StaleCalibrationWarning,
)

pytestmark = pytest.mark.usefixtures("quick")
X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER].astype(np.float32), Y[ORDER]
NEW = slice(1200, None)


@cache
def made():
    return Guard(X[:600], Y[:600], precision=0.8, by_class=True)


def test_a_guard_of_classes_answers_by_the_rule_of_classes_and_says_so(tmp_path):
    guard = made()
    rule = guard.rule
    assert isinstance(rule, ClassRule)
    assert str(rule) == str(guard.index.guarantee_by_class(0.8))
    answers = guard.ask(X[NEW])
    assert answers.label.tolist() == guard.index.ask(X[NEW], rule).label.tolist()
    assert set(answers.label[answers.answered].tolist()) <= set(rule.rules)
    n = len(rule.rules)
    assert f"of the answers with each of {n} of 10 labels at least 80% are right" in repr(guard)
    assert "80% right by class" in repr(guard)
    together = guard.at(0.8, by_class=False)
    assert not isinstance(together.rule, ClassRule)
    assert together.at(0.9).by_class is False
    assert guard.at(0.85).by_class is True
    assert guard.rule is guard.rule  # computed once
    guard.save(tmp_path / "guard")
    again = Guard.load(tmp_path / "guard")
    assert again.by_class
    assert again.ask(X[NEW]).label.tolist() == answers.label.tolist()


def test_what_no_class_has_is_refused_with_the_reason():
    with pytest.warns(FewQueriesWarning, match=r"precision=0.99 .*guaranteed.*any class"):
        guard = made().at(0.99, by_class=True)
    with pytest.raises(InputError, match=r"of any class: .*guard\.at\(0\.99, by_class=False\)"):
        guard.ask(X[NEW])
    assert "99% right by class" in repr(guard)
    for wrong in ("yes", 1, None):
        if wrong is not None:
            with pytest.raises(InputError, match=f"by_class={wrong!r}.*True or False"):
                made().at(0.9, by_class=wrong)
        with pytest.raises(InputError, match=f"by_class={wrong!r}.*True or False"):
            Guard(X[:600], Y[:600], by_class=wrong)
    with pytest.raises(AttributeError, match=r"guard\.at\(precision, by_class=True\)"):
        made().guarantee_by_class(0.9)


def test_a_changed_gallery_is_told_of_each_class():
    guard = copy.deepcopy(made())
    guard.remove(np.arange(20))
    assert guard.rule.gallery.covered
    assert all(rule.gallery.changed == 20 for rule in guard.rule.rules.values())
    assert "simulated up to 10%" in repr(guard)
    with pytest.warns(StaleCalibrationWarning):
        guard.remove(np.arange(100, 200))
    assert not guard.rule.gallery.covered


SHARES = np.array([300, 300, 300, 1]) / 901


def imbalanced(seed):
    """Draw a world; its rare class lies next to the third one."""
    g = np.random.default_rng(seed)
    means = 1.6 * np.eye(4, 6) + 0.3 * g.normal(size=(4, 6))
    means[3] = means[2] + 1.6 * np.eye(6)[5]

    def drawn(n, shares=SHARES):
        y = g.choice(4, n, p=shares)
        return (means[y] + 0.7 * g.normal(size=(n, 6))).astype(np.float32), y

    return drawn


def test_300_worlds_keep_the_precision_of_each_class_at_an_imbalance_of_1_to_300():
    """Estimand: the worst precision of the answers with one label, of 10,000 new queries."""
    broken: dict[bool, list[bool]] = {True: [], False: []}
    for seed in range(300):
        drawn = imbalanced(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LaplaceMetricWarning)
            x, y = drawn(160, np.full(4, 0.25))
            guard = Guard(x, y, precision=0.9, by_class=True, held_out=drawn(600), seed=seed)
            x, y = drawn(10_000)
            found = guard.index.search(x, 1)
            for by_class, worlds in broken.items():
                if (rule := guard.at(0.9, by_class=by_class).rule) is not None:
                    label = rule(found).label
                    right = [(y[label == c] == c).mean() for c in range(4) if (label == c).any()]
                    worlds.append(min(right) < 0.9)
    ends = {
        by_class: binomtest(sum(worlds), len(worlds)).proportion_ci(0.9, method="exact")
        for by_class, worlds in broken.items()
    }
    assert min(map(len, broken.values())) > 250
    assert ends[True].high <= 0.05
    assert ends[False].low > 0.9  # together they hide the rare one
