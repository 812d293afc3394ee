"""Thresholds: the bound, the rule by brute force, and whether the promise is kept."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

from laplace_metric.calibration import guarantee
from laplace_metric.calibration.guarantees import _queries_needed
from laplace_metric.calibration.guarantees._test_sequences import SHARES, STARTS, lower_bound
from laplace_metric.errors import InputError
from laplace_metric.plots import threshold_plot
from tests.calibration.arrays import largest_guarantee, queries_needed


@pytest.mark.parametrize("n", [1, 7, 200])
@pytest.mark.parametrize("delta", [0.005, 0.05, 0.3])
def test_the_bound_is_clopper_and_pearson_s(n, delta):
    for successes in {0, 1, n // 2, n - 1, n}:
        exact = binomtest(successes, n).proportion_ci(1 - 2 * delta, method="exact")
        bound = lower_bound(successes, n, delta)
        assert bound == pytest.approx(exact.low, abs=1e-9)
        if successes:
            assert binom.sf(successes - 1, n, bound) == pytest.approx(delta)


def precise(p, right, target, delta, others=None):
    """Lowest threshold that a sequence reaches, one test after the other; None if none begins."""
    grid, out = (p, 1) if others is None else (others, 0)
    ranks = [math.ceil(len(grid) * share) for share in SHARES]
    starts = [np.sort(grid)[::-1][rank - 1] for rank in ranks]
    own, spare = [], 0.0
    for rank in ranks:
        flawless = target ** max(rank * len(p) // len(grid) - out, 0)
        own.append(0.0 if flawless > delta / STARTS + spare else delta / STARTS + spare)
        spare = 0.0 if own[-1] else spare + delta / STARTS
    level, reached, best = 0.0, False, None
    for value in np.unique([*p, *starts])[::-1]:
        level += sum(more for start, more in zip(starts, own, strict=True) if start == value)
        left = 0 if reached else out
        good, n = int(right[p >= value].sum()) - left, int((p >= value).sum()) - left
        reached = level > 0 and good > 0 and binom.sf(good - 1, n, target) <= level
        level = level if reached else 0.0
        best = value if reached else best
    return best


def complete(p, right, target, delta):
    """Highest threshold of one sequence from below."""
    best, n = None, int(right.sum())
    for value in np.unique(p[right]):
        good = int((right & (p >= value)).sum())
        if binom.sf(good - 1, n, target) > delta:
            break
        best = value
    return best


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("quantity", ["precision", "precision by others", "recall"])
def test_it_is_the_rule_by_brute_force(quantity, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 160))
    p = rng.random(n)
    if seed % 2:
        p = p.round(1)  # ties
    right = rng.random(n) < p ** rng.choice([0.1, 0.5, 1.0])
    target, confidence = rng.choice([0.5, 0.8, 0.9]), rng.choice([0.6, 0.9])
    delta, others = 1 - confidence, rng.random(60).round(1 + seed % 3)
    quantity, _, by_others = quantity.partition(" by ")
    if quantity == "recall":
        expected = complete(p, right, target, delta)
    else:
        expected = precise(p, right, target, delta, others if by_others else None)
    promise = {quantity: float(target), "confidence": float(confidence)}
    promise |= {"thresholds": others} if by_others else {}
    args = torch.from_numpy(p), torch.from_numpy(right)
    if expected is None:
        with pytest.raises(InputError, match="cannot be guaranteed"):
            guarantee(*args, **promise)
        return
    threshold = guarantee(*args, **promise)
    assert threshold.value == expected
    accepted = p >= expected
    share = right[accepted].mean() if quantity == "precision" else accepted[right].mean()
    assert threshold.estimate == pytest.approx(share)
    assert threshold.coverage == pytest.approx(accepted.mean())
    assert threshold.target <= threshold.bound <= threshold.estimate
    assert (threshold.quantity, threshold.n_tested, threshold.confidence) == (
        quantity,
        n,
        confidence,
    )


def test_a_sequence_ends_at_the_first_that_is_not_rejected():
    right = np.repeat([True, False, True, False], [60, 12, 40, 288])
    p = np.linspace(1, 0, len(right))
    expected = precise(p, right, 0.8, 0.1)
    threshold = guarantee(*map(torch.from_numpy, (p, right)), precision=0.8, confidence=0.9)
    assert threshold.value == expected
    later = right[: 60 + 12 + 40].mean()
    assert later > 0.8, "there are more that would do, behind some that do not"


@pytest.mark.parametrize("seed", range(6))
def test_order_and_type_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    p = torch.from_numpy(rng.random(300).round(2))
    right = torch.from_numpy(rng.random(300)) < p
    order = torch.from_numpy(rng.permutation(300))
    for promise in ({"precision": 0.6}, {"recall": 0.7}):
        one = guarantee(p, right, **promise)
        assert guarantee(p[order], right[order], **promise) == one
        assert guarantee(p, right.long(), **promise) == one


RUNS, N, DELTA = 400, 400, 0.1
MOST = DELTA + 3 * (DELTA * (1 - DELTA) / RUNS) ** 0.5


def promises(quantity: str, target: float, true, draw) -> tuple[float, float]:
    """Share of calibration sets that find a threshold, and whose threshold breaks its promise."""
    rng, made, broken = np.random.default_rng(0), 0, 0
    for _ in range(RUNS):
        p, right = draw(rng)
        promise = {quantity: target, "confidence": 1 - DELTA}
        try:
            threshold = guarantee(torch.from_numpy(p), torch.from_numpy(right), **promise)
        except InputError:
            continue
        made, broken = made + 1, broken + (true(threshold.value) < target)
    return made / RUNS, broken / RUNS


def calibrated_pairs(rng):
    p = rng.random(N)
    return p, rng.random(N) < p


def bumpy_pairs(rng):
    """Sure where it is wrong: precision falls towards the highest thresholds."""
    p = rng.random(N)
    return p, rng.random(N) < np.where(p > 0.8, 0.7, 0.99)


def bumpy_precision(t: float) -> float:
    return (0.7 * min(0.2, 1 - t) + 0.99 * max(0.0, 0.8 - t)) / (1 - t)


def test_precision_is_kept_as_often_as_promised():
    """P(match | p) = p for uniform p: precision above t is (1 + t) / 2."""
    made, broken = promises("precision", 0.7, lambda t: (1 + t) / 2, calibrated_pairs)
    assert made > 0.9
    assert broken <= MOST


def test_precision_is_kept_where_it_falls_towards_the_top():
    assert bumpy_precision(0.9) < 0.9 < bumpy_precision(0.0)
    made, broken = promises("precision", 0.9, bumpy_precision, bumpy_pairs)
    assert made > 0.3
    assert broken <= MOST


def test_precision_is_kept_where_every_threshold_just_misses_the_target():
    """The worst case: each of the ten sequences begins at a threshold that must be rejected."""

    def draw(rng):
        return rng.random(N), rng.random(N) < 0.7999

    made, broken = promises("precision", 0.8, lambda t: 0.7999, draw)
    assert made == broken
    assert DELTA / 3 < broken <= MOST, "most of what may break is used"


def test_recall_is_kept_as_often_as_promised_and_not_by_being_careful():
    """Given a match, p has density 2 p: recall above t is 1 - t^2."""
    made, broken = promises("recall", 0.9, lambda t: 1 - t**2, calibrated_pairs)
    assert made == 1
    assert DELTA / 3 <= broken <= MOST


def test_thresholds_of_other_queries_make_it_exact_where_ties_are_worst():
    """Two values, of which the lower is always right: every threshold just misses the target."""
    rng, made = np.random.default_rng(0), 0
    for _ in range(RUNS):
        p = np.where(rng.random(N) < 0.5, 0.9, 0.8)
        right = rng.random(N) < np.where(p > 0.85, 0.6, 0.9999)
        try:
            guarantee(p, right, precision=0.8, confidence=1 - DELTA, thresholds=rng.permutation(p))
        except InputError:
            continue
        made += 1
    assert made / RUNS <= MOST


def test_a_test_leaves_out_the_hit_at_its_own_threshold():
    """29 right ones are enough for a fixed threshold; of 29, one is the threshold."""
    p = np.linspace(0, 1, 29)
    assert guarantee(p, p >= 0, precision=0.9, thresholds=p).coverage == 1
    with pytest.raises(InputError, match=r"about 10 more.*or many more\.$"):
        guarantee(p, p >= 0, precision=0.9)
    p = np.linspace(0, 1, 30)
    assert guarantee(p, p >= 0, precision=0.9).coverage == 1


def test_advice_is_computed_once(monkeypatch):
    calls = []
    counted = _queries_needed._smallest
    monkeypatch.setattr(_queries_needed, "_smallest", lambda *a: calls.append(1) or counted(*a))
    _queries_needed._more.cache_clear()
    p = np.linspace(0, 1, 120)
    for _ in range(3):
        with pytest.raises(InputError, match="calibrate on.*1,600 more"):
            guarantee(p, np.arange(120) % 24 > 0, precision=0.9)
    assert len(calls) == 2  # of both ends of the range


def test_all_that_is_tied_is_accepted_or_none_of_it():
    p = torch.tensor([0.9] * 100 + [0.5] * 100)
    right = torch.tensor([True] * 100 + [True, False] * 50)
    threshold = guarantee(p, right, precision=0.9)
    assert threshold.value == pytest.approx(0.9)
    assert threshold.coverage == 0.5
    assert threshold.estimate == 1.0
    assert guarantee(p, right, precision=0.6).coverage == 1.0
    assert guarantee(p, right, recall=0.9).coverage == 1.0
    assert guarantee(p, right, recall=0.5).value == pytest.approx(0.9)


def test_what_cannot_be_promised_says_what_can():
    p = torch.linspace(0, 1, 200)
    with pytest.raises(InputError, match="precision=0.99 .*guaranteed") as error:
        guarantee(p, torch.ones(200) > 0, precision=0.99)
    best = float(re.search(r"these queries support (0\.\d+)", str(error.value))[1])
    assert best == pytest.approx(lower_bound(199, 199, 0.05 / STARTS), abs=1e-3)
    assert guarantee(p, torch.ones(200) > 0, precision=best).coverage == 1
    needed = queries_needed(p, torch.ones(200) > 0, precision=0.99).flawless - 1  # the threshold
    assert lower_bound(needed, needed, 0.05) >= 0.99 > lower_bound(needed - 1, needed - 1, 0.05)
    grown = torch.linspace(0, 1, needed + 1)
    assert guarantee(grown, grown > -1, precision=0.99).coverage == 1
    hopeful = torch.linspace(1, 0, 100)
    right = torch.arange(100) % 10 < 8
    with pytest.raises(InputError, match="100 surest, 80.*right.*not enough") as error:
        guarantee(hopeful, right, precision=0.9)
    mixed = np.random.default_rng(40).permutation(np.arange(40) % 10 < 8)
    with pytest.raises(InputError, match="cannot.*told from"):
        guarantee(hopeful[:40], mixed, precision=0.8)  # as often as that, and no more
    with pytest.raises(InputError, match=r"about 10 to 1,300 more.*half.*test"):
        guarantee(hopeful, torch.arange(100) % 10 < 9, precision=0.8, thresholds=hopeful)
    with pytest.raises(InputError, match=r"about 10 to 600 more.*queries\.$"):
        guarantee(hopeful, torch.arange(100) % 10 < 9, precision=0.8)
    best = float(re.search(r"these queries support (0\.\d+)", str(error.value))[1])
    assert guarantee(hopeful, right, precision=best).bound >= best
    with pytest.raises(InputError, match="cannot be guaranteed"):
        guarantee(hopeful, right, precision=best + 0.001)
    for promise in ({"recall": 0.9}, {"precision": 0.5}):
        with pytest.raises(InputError, match=r"queries support 0 \("):
            guarantee(p, p > 2, **promise)


@pytest.mark.parametrize(
    ("promise", "message"),
    [
        ({}, "pass one of precision=, recall="),
        ({"precision": 0.9, "recall": 0.9}, "pass one of"),
        ({"precision": 1.0}, "precision=1.0: pass a number between 0 and 1"),
        ({"recall": 0}, "recall=0"),
        ({"precision": "high"}, "precision='high'"),
        ({"precision": 0.9, "confidence": 95}, "confidence=95"),
        ({"precision": float("nan")}, "precision=nan"),
    ],
)
def test_targets_lie_between_0_and_1(promise, message):
    p = torch.linspace(0, 1, 50)
    with pytest.raises(InputError, match=message):
        guarantee(p, p > 0.5, **promise)


@pytest.mark.parametrize("correct", [torch.ones(60) > 0, torch.ones(50, 1) > 0, torch.ones(0) > 0])
def test_one_hit_a_probability(correct):
    with pytest.raises(InputError, match="correct (is empty|has length 60|has shape)"):
        guarantee(torch.linspace(0, 1, 50), correct, precision=0.5)
    with pytest.raises(InputError, match=r"probability.*\(0,\).*at least one"):
        guarantee(torch.zeros(0), torch.zeros(0), recall=0.5)


def test_a_threshold_reads_as_a_sentence():
    p = torch.linspace(0, 1, 2000)
    threshold = guarantee(p, p > 0.25, precision=0.9, confidence=0.995)
    assert str(threshold).split("\n") == [
        f"accepts the first hit if its match probability is at least {threshold.value:.4g}",
        "guarantees a precision of at least 90% with 99.5% confidence (proven by a fixed sequence "
        "of exact tests, if a better score is never less often right)",
        f"on 2,000 held-out queries: precision {threshold.estimate:.2%}; answers "
        f"{threshold.coverage:.1%} of all",
    ]


def largest(p, right):
    """Of ten tests, one after the other: the best bound, and the lowest threshold that keeps it."""
    tests = []
    for share in SHARES:
        value = np.sort(p)[::-1][math.ceil(len(p) * share) - 1]
        good, n = int(right[p >= value].sum()), int((p >= value).sum())
        bound = 0.0
        if n > 1 and good:  # without the hit at the threshold
            bound = binomtest(good - 1, n - 1).proportion_ci(1 - 0.01, method="exact").low
        tests.append((bound, value, n / len(p)))
    target = int(100 * max(bound for bound, _, _ in tests)) / 100
    return target, min(test[1] for test in tests if test[0] >= target)


@pytest.mark.parametrize("seed", range(12))
def test_the_largest_guarantee_is_the_best_of_ten_bounds(seed):
    g = np.random.default_rng(seed)
    p = np.round(g.uniform(size=int(g.integers(20, 300))), 1 + seed % 3)
    right = g.uniform(size=len(p)) < p ** (0.1 + seed / 20)
    found = largest_guarantee(p, right)
    assert (found.target, found.value) == largest(p, right)
    assert found.coverage == pytest.approx((p >= found.value).mean())
    assert found.estimate == pytest.approx(right[p >= found.value].mean())
    assert found.bound >= found.target
    assert guarantee(p, right, precision=found.target).value <= found.value


def test_the_largest_guarantee_is_kept_though_data_chose_it():
    """Of 2,000 calibrations at most one in twenty promises more than its threshold keeps."""
    g, broken = np.random.default_rng(0), 0
    for _ in range(2_000):
        p = g.uniform(size=60)
        found = largest_guarantee(p, g.uniform(size=60) < 0.5 + 0.3 * p)
        kept = 0.5 + 0.3 * (1 + found.value) / 2
        broken += kept < found.target
    assert broken <= 0.05 * 2_000


def test_where_all_is_wrong_there_is_no_largest_guarantee():
    with pytest.raises(InputError, match="of 30 queries.*0 are.*right"):
        largest_guarantee(np.linspace(0, 1, 30), np.zeros(30))


def test_a_single_probability_is_drawn():
    """A step between no two points has no length: it is invisible without a mark."""
    lines = threshold_plot([0.9] * 5, [1, 1, 1, 1, 0]).axes[0].lines
    assert [line.get_marker() for line in lines] == ["o", "o"]
    assert [line.get_ydata().tolist() for line in lines] == [[0.8], [1.0]]
    assert {line.get_marker() for line in threshold_plot([0.1, 0.9], [0, 1]).axes[0].lines} == {""}
