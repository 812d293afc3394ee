"""The folds of the match probability are those of scikit-learn; its steps, too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import GroupKFold

from laplace_metric.calibration.probability._calibrators import fit_calibrator
from laplace_metric.calibration.probability._match_probability import FOLDS, query_folds


@given(st.lists(st.integers(1, 6), min_size=FOLDS, max_size=40))
def test_folds_of_queries(sizes):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    wanted = GroupKFold(FOLDS).split(groups, groups=groups)
    for (train, test), (rows, held_out) in zip(query_folds(groups), wanted, strict=True):
        np.testing.assert_array_equal(train.nonzero()[0], rows)
        np.testing.assert_array_equal(test.nonzero()[0], held_out)


@pytest.mark.parametrize("seed", range(9))
def test_steps_of_a_score(seed):
    g = np.random.default_rng(seed)
    n = int(g.integers(20, 2_000))
    score = g.normal(size=n).round(1 if seed % 3 == 0 else 9)
    match = (g.random(n) < 1 / (1 + np.exp(-2 * score))).astype(float)
    edge = 1 / (n + 2)
    steps = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(score, match)
    numbers = fit_calibrator("isotonic", score, match, np.ones(n)).numbers
    np.testing.assert_allclose(numbers[0], steps.X_thresholds_)
    np.testing.assert_allclose(numbers[1], steps.y_thresholds_)
