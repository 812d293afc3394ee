"""R-AUROC against pair counting, and where it is undefined."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from laplace_metric.errors import InputError, NonFiniteError, UndefinedMetricWarning
from laplace_metric.evaluation import r_auroc


def test_counts_pairs_of_wrong_and_right_queries():
    draw = np.random.default_rng(0)
    uncertainty, correct = draw.integers(0, 9, 60), draw.integers(0, 2, 60)
    wrong, right = uncertainty[correct == 0], uncertainty[correct == 1]
    pairs = [(w > r) + 0.5 * (w == r) for w in wrong for r in right]
    assert r_auroc(uncertainty, correct) == pytest.approx(np.mean(pairs))
    assert r_auroc(uncertainty, correct.astype(bool)) == pytest.approx(np.mean(pairs))


def test_direction_and_constant():
    correct = torch.tensor([True, True, False])
    assert r_auroc([0.0, 0.1, 0.2], correct) == 1.0
    assert r_auroc([0.2, 0.1, 0.0], correct) == 0.0
    assert r_auroc([0.2, 0.2, 0.2], correct) == 0.5


@pytest.mark.parametrize(("correct", "state"), [([1, 1], "right"), ([0, 0], "wrong")])
def test_undefined_is_nan_with_a_warning(correct, state):
    with pytest.warns(UndefinedMetricWarning, match=f"all 2 queries are {state}"):
        assert math.isnan(r_auroc([0.1, 0.2], correct))


def test_errors_name_the_argument():
    with pytest.raises(InputError, match="correct has values between 0 and 1"):
        r_auroc([0.1, 0.2], [0.5, 1.0])
    with pytest.raises(NonFiniteError, match="correct holds 1 NaN"):
        r_auroc([0.1, 0.2], [np.nan, 1.0])
    with pytest.raises(InputError, match="correct has length 1"):
        r_auroc([0.1, 0.2], [1])
    with pytest.raises(InputError, match="uncertainty is empty"):
        r_auroc([], [])
