"""True precision after a shift, against many drawn queries."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.retrieval.new_classes import nearest, squared
from benchmarks.retrieval.shifted import MOVES, TARGET, WORLDS, precision
from laplace_metric.calibration import calibrate_scores


@pytest.mark.parametrize("moved", MOVES, ids=lambda moved: moved.name)
@pytest.mark.parametrize("world", WORLDS[1:], ids=lambda world: world.name)
def test_the_truth_is_that_of_many_queries(world, moved):
    g = np.random.default_rng(0)
    score, right, mated = world.draw(g, 1_000)
    calibration = calibrate_scores(score, right, mated=mated)
    score, right, mated = moved.of(world).draw(g, 200_000)
    score += moved.nearer * ~mated[:, None]
    answered = calibration.guarantee(precision=TARGET)(score).answered
    drawn = right[answered].mean()
    assert precision(calibration, moved, world, None) == pytest.approx(drawn, abs=0.01)


def test_the_nearest_are_those_of_a_sort():
    g = np.random.default_rng(0)
    x, y = g.normal(size=(7, 3)), g.normal(size=(40, 3))
    distance = squared(x, y)
    np.testing.assert_allclose(distance, ((x[:, None] - y) ** 2).sum(-1))
    near, rows = nearest(distance)
    np.testing.assert_array_equal(rows, distance.argsort(1)[:, :10])
    np.testing.assert_array_equal(near, np.sort(distance, 1)[:, :10])
