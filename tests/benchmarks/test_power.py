"""Guarantees against an oracle and other ways: worlds with known truth, and their records."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.records import read_record
from benchmarks.retrieval import growing, power


@pytest.mark.parametrize("world", power.power_worlds(), ids=lambda world: world.name)
def test_the_truth_of_a_world_is_that_of_its_draws(world):
    p, precision, share = world.truth()
    drawn, right = world.draw(np.random.default_rng(5), 50_000)
    for at in (len(p) // 4, len(p) // 2):
        accepted = drawn >= p[at]
        assert accepted.mean() == pytest.approx(share[at], abs=0.15 if world.step else 0.01)
        if not world.step:
            assert right[accepted].mean() == pytest.approx(precision[at], abs=0.02)
    assert right.mean() == pytest.approx(world.share, abs=0.01)


def test_hoeffding_and_bentkus_reject_a_true_risk_as_rarely_as_said():
    g = np.random.default_rng(0)
    errors = g.binomial(200, 0.1, size=20_000)
    p = power.hoeffding_bentkus(errors, np.full(20_000, 200), 0.1)
    assert 0.005 <= (p <= 0.05).mean() <= 0.05
    assert power.hoeffding_bentkus(np.zeros(1), np.array([29]), 0.1)[0] <= 0.05
    assert power.hoeffding_bentkus(np.zeros(1), np.array([0]), 0.1)[0] == 1


def test_a_fixed_sequence_stops_at_the_first_threshold_that_fails():
    p = np.repeat([0.9, 0.5, 0.1], 100)
    right = np.concatenate([np.ones(100), np.zeros(20), np.ones(180)]).astype(bool)
    found = power.learn_then_test(p, right, 0.9)
    assert 0.5 < found <= 0.9
    assert power.learn_then_test(p, ~right, 0.9) is None


def test_the_records_keep_what_is_said():
    rows = read_record("power")["rows"]
    assert {row["world"] for row in rows} == {world.name for world in power.power_worlds()}
    for row in rows:
        assert row["runs"] == power.RUNS
        assert row["ours"]["low"] <= 0.05
        assert row["ours"]["answered"] <= row["oracle"] + 0.05
    for row in read_record("growing")["rows"]:
        if row["step"] in growing.STEPS[:2]:
            assert row["low"] <= 0.05


def test_the_most_that_one_threshold_answers_is_that_of_drawn_calibrations():
    """Thresholds of the truth, tested on 3,000 draws of 100 pairs by the exact binomial test."""
    world, n = power.power_worlds()[0], 100
    p, precision, share = world.truth()
    places = np.flatnonzero(precision >= world.target)[:: power.FINE // 50]
    passed = np.zeros(len(places))
    g, runs = np.random.default_rng(2), 3_000
    for _ in range(runs):
        drawn, right = world.draw(g, n)
        accepted = drawn[None] >= p[places, None]
        errors = (accepted & ~right).sum(1)
        passed += binom.cdf(errors, accepted.sum(1), 1 - world.target) <= power.DELTA
    most = (share[places] * passed / runs).max()
    assert power.one_threshold(world, n) == pytest.approx(most, rel=0.08)
