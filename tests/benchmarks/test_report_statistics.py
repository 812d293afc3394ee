"""Which methods can be told apart: intervals of differences, and leaders."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as scipy_t

from benchmarks.report.collect import _short
from benchmarks.report.statistics import difference, leaders


def runs(method, replicates, values=None):
    """Rows of a method: a list of replicates for each seed."""
    values = values or [float(np.mean(found)) for found in replicates]
    return [
        {"method": method, "seed": seed,
         "metrics": {"m": {"value": value, "replicates": list(found)}}}
        for seed, (found, value) in enumerate(zip(replicates, values, strict=True))
    ]  # fmt: skip


@pytest.fixture
def drawn():
    """Differences whose spread comes from seeds and queries alike: [seed, replicate]."""
    noise = np.random.default_rng(1).normal(0, 0.08, (3, 40))
    return np.array([[-0.05], [0.05], [0.15]]) + noise


def test_the_interval_has_seeds_and_queries_in_it(drawn):
    found = difference(runs("a", drawn), runs("b", np.zeros_like(drawn)), "m")
    seeds = scipy_t.interval(0.95, 2, drawn.mean(), drawn.mean(1).std(ddof=1) / 3**0.5)
    queries = 1.96 * drawn.mean(0).std(ddof=1)
    half = np.hypot((seeds[1] - seeds[0]) / 2, queries)
    assert found["difference"] == pytest.approx(drawn.mean())
    assert found["high"] - found["difference"] == pytest.approx(half)
    assert found["difference"] - found["low"] == pytest.approx(half)
    one = difference(runs("a", drawn)[:1], runs("b", np.zeros_like(drawn))[:1], "m")
    assert one["high"] - one["difference"] == pytest.approx(1.96 * drawn[0].std(ddof=1))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 2.0])
def test_intervals_hold_the_truth(ratio):
    """Three seeds that share their queries; ratio: noise of queries over that of seeds."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        seeds, queries = rng.normal(0, 1, (3, 1)), rng.normal(0, ratio)
        drawn = seeds + queries + rng.normal(0, ratio, (1, 200)) + rng.normal(0, 1e-9, (3, 200))
        values = (seeds[:, 0] + queries).tolist()
        found = difference(runs("a", drawn, values), runs("b", 0 * drawn), "m")
        held += found["low"] <= 0 <= found["high"]
    assert held / 400 > 0.93


def test_identical_methods_cannot_be_told_apart_and_distant_ones_can(drawn):
    same = difference(runs("a", drawn), runs("b", drawn), "m")
    assert (same["difference"], same["low"], same["high"]) == (0.0, 0.0, 0.0)
    apart = difference(runs("a", drawn + 1), runs("b", drawn), "m")
    assert (apart["low"], apart["high"]) == pytest.approx((1, 1))  # the resamples are paired
    of = {"a": runs("a", drawn + 1), "b": runs("b", drawn), "c": runs("c", drawn + 1)}
    assert leaders(of, "m", higher=True) == ("a", ["a", "c"])
    assert leaders(of, "m", higher=False) == ("b", ["b"])


def test_only_common_seeds_are_compared(drawn):
    first, second = runs("a", drawn), runs("b", drawn)[1:]
    assert difference(first, second, "m") == {"difference": 0.0, "low": 0.0, "high": 0.0}
    assert difference(first[:1], second, "m") == {}


def test_collected_runs_are_compared_by_their_intervals(drawn):
    """As if the queries of both were others: wider than the paired interval of the same runs."""
    values = [0.0, 0.1, 0.2]
    a, b = runs("a", drawn, values), runs("b", drawn + 1, [0.0, 0.0, 0.0])
    paired = difference(a, b, "m")
    for row in a:
        cell = row["metrics"]["m"]
        cell |= {"low": cell["value"] - 0.3, "high": cell["value"] + 0.3}
        del cell["replicates"]
    assert difference(a, b, "m") == {}
    for row in b:
        row["metrics"]["m"] |= {"low": -0.4, "high": 0.4}
    found = difference(a, b, "m")
    between = scipy_t.ppf(0.975, 2) * np.std(values, ddof=1) / 3**0.5
    half = np.hypot(between, np.hypot(0.3, 0.4))
    assert found["difference"] == paired["difference"]
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half)
    assert leaders({"a": a, "b": b}, "m", higher=True)[0] == "a"
    assert leaders({"a": []}, "m", higher=True) == ("", [])


def test_a_seed_without_replicates_still_counts(drawn):
    """Two paired seeds have a t of 12.7 in place of 4.3: the intervals of all three are better."""
    a, b = runs("a", drawn, [0.1, 0.12, 0.11]), runs("b", drawn, [0.5, 0.53, 0.5])
    for row in a + b:
        cell = row["metrics"]["m"]
        cell |= {"low": cell["value"] - 0.02, "high": cell["value"] + 0.02}
    whole = difference(a, b, "m")
    del a[0]["metrics"]["m"]["replicates"]
    found = difference(a, b, "m")
    assert found["difference"] == pytest.approx(-0.4)
    between = scipy_t.ppf(0.975, 2) * np.std([0.4, 0.41, 0.39], ddof=1) / 3**0.5
    half = np.hypot(between, np.hypot(0.02, 0.02))
    assert found["high"] - found["difference"] == pytest.approx(half)
    assert whole["high"] - whole["low"] < 2 * half
    assert leaders({"a": a, "b": b}, "m", higher=True) == ("b", ["b"])


def test_undefined_differences_become_null():
    assert _short({"low": math.nan, "high": 0.123456}) == {"low": None, "high": 0.1235}
