"""What a plot of an outcome marks: the rule's own point, and the precision that was guaranteed."""

from __future__ import annotations

import numpy as np
import pytest

from laplace_metric.errors import InputError
from laplace_metric.plots import outcome_plot

PROBABILITY = np.array([0.95, 0.9, 0.8, 0.6, 0.3])
RIGHT = np.array([True, True, False, True, False])


def test_a_rule_and_its_guarantee_are_marked():
    answered = np.array([True, True, True, False, False])
    axes = outcome_plot(PROBABILITY, RIGHT, answered=answered, precision=0.6).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["guaranteed"].get_ydata()) == [0.6, 0.6]
    x, y = (float(values[0]) for values in lines["this rule"].get_data())
    assert (x, y) == pytest.approx((3 / 5, 2 / 3))


def test_nothing_is_marked_that_was_not_given():
    axes = outcome_plot(PROBABILITY, RIGHT).axes[0]
    assert {line.get_label() for line in axes.lines} == {"any threshold"}
    with pytest.raises(InputError, match=r"answered \[2\].*pass \[Q\]"):
        outcome_plot(PROBABILITY, RIGHT, answered=[True, False])
