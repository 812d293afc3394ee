"""The window's test against enumeration, scipy and scikit-learn."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from laplace_metric.monitor._window_tests import compare, holm, p_value, tail_p_value

R = np.random.default_rng(0)
NORMAL = R.normal(size=5000)


@pytest.mark.parametrize("pooled", [np.arange(40.0), np.repeat(np.arange(8.0), 5)],
                         ids=["no ties", "ties"])  # fmt: skip
def test_tail_is_exact_over_all_ways_to_cut_the_pool(pooled):
    """With three of forty in the window: every one of 9,880 cuts is as likely as the others."""
    top = int((pooled >= np.quantile(pooled, 0.95, method="higher")).sum())
    rows = list(combinations(range(40), 3))
    counts = np.array([sum(row >= 40 - top for row in chosen) for chosen in rows])
    p = {}
    for count in set(counts):
        chosen = np.array(rows[int((counts == count).argmax())])
        p[count] = tail_p_value(np.delete(pooled, chosen), pooled[chosen])
        tails = (counts <= count).mean(), (counts >= count).mean()
        assert p[count] == pytest.approx(min(1, 2 * min(tails)))
    assert top == (5 if pooled.max() < 39 else 2)


def test_three_tests_and_no_fourth():
    window = R.normal(size=400) + 0.1
    three = (
        stats.ks_2samp(NORMAL, window, method="asymp").pvalue,
        tail_p_value(NORMAL, window),
        tail_p_value(-NORMAL, -window),
    )
    assert p_value(NORMAL, window) == pytest.approx(3 * min(three))
    assert p_value(NORMAL, NORMAL[::10]) == 1.0


@pytest.mark.parametrize("side", [1, -1], ids=["largest", "smallest"])
def test_a_few_foreign_queries_in_one_tail_are_seen(side):
    window = stats.norm.ppf((np.arange(500) + 0.5) / 500)
    window[::20] = side * 3
    assert stats.ks_2samp(NORMAL, window).pvalue > 0.05
    assert p_value(NORMAL, window) < 1e-3


def test_numbers_of_a_shift():
    window = np.round(R.normal(size=300) + 0.5, 1)
    reference = np.round(NORMAL, 1)
    test = compare(reference, window)
    truth = np.r_[np.zeros(5000), np.ones(300)]
    assert test.larger == pytest.approx(roc_auc_score(truth, np.r_[reference, window]))
    assert test.window.median == np.median(window)
    assert (test.reference.low, test.reference.high) == tuple(np.quantile(reference, (0.05, 0.95)))
    assert test.above == (window > np.quantile(reference, 0.95)).mean() > 0.05
    assert test.below == (window < np.quantile(reference, 0.05)).mean() < 0.05
    assert test.p_value == p_value(reference, window)
    changed = {"larger": NORMAL + 1, "smaller": NORMAL - 1, "differently spread": 3 * NORMAL}
    for word, other in changed.items():
        assert compare(NORMAL, other[:2000]).direction == word


def test_holm_is_monotone_and_capped():
    assert holm([0.01]) == [0.01]
    assert holm([0.2, 0.01, 0.04, 0.9]) == pytest.approx([0.4, 0.04, 0.12, 0.9])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.02, 0.019]) == pytest.approx([0.038, 0.038])
