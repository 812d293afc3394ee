"""What a promise lacks, against enumeration with other definitions, and against carrying it out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binomtest

from laplace_metric.calibration import guarantee
from laplace_metric.calibration.guarantees._queries_needed import REACH, chance_of_test
from laplace_metric.calibration.guarantees._test_sequences import SHARES, STARTS
from laplace_metric.errors import InputError
from tests.calibration.arrays import queries_needed

LEVEL = 0.05 / 10
DELTA = 0.05


def enumerated(accepted: int, right: int, then: int, target: float, level: float = LEVEL) -> float:
    """The same chance, one outcome at a time."""
    m, a, b = then - accepted, right + 0.5, accepted - right + 0.5
    total = 0.0
    for new in range(m + 1):
        if binomtest(right + new, then, target, "greater").pvalue <= level:
            total += betabinom.pmf(new, m, a, b)
    return float(total)


@settings(max_examples=40, deadline=None)
@given(
    accepted=st.integers(1, 60),
    share=st.floats(0, 1),
    more=st.integers(0, 80),
    target=st.sampled_from((0.3, 0.8, 0.9, 0.99)),
)
def test_the_chance_is_that_of_all_outcomes(accepted, share, more, target):
    right = round(share * accepted)
    found = chance_of_test(accepted, right, accepted + more, target, LEVEL)
    assert found == pytest.approx(enumerated(accepted, right, accepted + more, target), abs=1e-9)


def held_out(n: int, power: float, seed: int):
    """Probabilities, and answers that are right with the chance p ** power."""
    g = np.random.default_rng(seed)
    p = g.uniform(size=n)
    return p, g.uniform(size=n) < p**power


def shares(p, right):
    """Accepted and right at each start, counted from a sorted list."""
    ordered = right[np.argsort(-p)]
    sizes = [math.ceil(len(p) * share) for share in SHARES]
    return [(n, int(ordered[:n].sum())) for n in sizes]


def largest_chance(p, right, more: int, target: float) -> float:
    """The largest chance of a start; those that can never pass leave their level to the next."""
    level, found = DELTA / STARTS, 0.0
    for n, k in shares(p, right):
        then = -(-(len(p) + more) * n // len(p))
        if binomtest(then, then, target, "greater").pvalue > level:
            level += DELTA / STARTS
            continue
        found = max(found, enumerated(n, k, then, target, level))
        level = DELTA / STARTS
    return found


@pytest.mark.parametrize(("seed", "target"), [(1, 0.85), (4, 0.9), (6, 0.9)])
def test_one_query_fewer_is_not_enough(seed, target):
    p, right = held_out(40, 0.15, seed)
    missing = queries_needed(p, right, precision=target, thresholds=p)
    assert missing.more is not None
    assert 0 < missing.more < 400
    assert largest_chance(p, right, missing.more, target) >= 0.8
    assert largest_chance(p, right, missing.more - 1, target) < 0.8


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), target=st.floats(0.2, 0.95), n=st.integers(1, 120))
def test_nothing_is_missing_just_where_the_promise_can_be_made(seed, target, n):
    p, right = held_out(n, 0.2, seed)
    missing = queries_needed(p, right, precision=target, thresholds=p)
    try:
        guarantee(p, right, precision=target, thresholds=p)
    except InputError:
        assert missing.more != 0
    else:
        assert missing.more == 0


def test_with_that_many_more_the_promise_is_made_about_as_often_as_said():
    """80 % is said; 38 of 50 at the time of writing, 50 runs are off by 6 % at one deviation."""
    made = asked = seed = 0
    while asked < 50:
        seed += 1
        p, right = held_out(80, 0.1, seed)
        more = queries_needed(p, right, precision=0.9).more
        if not more:
            continue
        new, new_right = held_out(more, 0.1, 10_000 + seed)
        asked += 1
        try:
            guarantee(np.r_[p, new], np.r_[right, new_right], precision=0.9)
        except InputError:
            continue
        made += 1
    assert 0.6 <= made / asked <= 1.0


def test_no_number_of_queries_helps_answers_that_are_wrong():
    p = torch.linspace(0, 1, 400)
    right = torch.arange(400) % 5 > 0
    missing = queries_needed(p, right, precision=0.95, thresholds=p)
    assert missing.more is None
    assert (missing.surest, missing.right) in {(n, k) for n, k in shares(p.numpy(), right.numpy())}
    assert missing.right / missing.surest == pytest.approx(0.8, abs=0.02)
    assert queries_needed(p, right, precision=0.75).more is not None


@pytest.mark.parametrize(("seed", "target"), [(0, 0.9), (5, 0.95), (7, 0.9)])
def test_ever_is_what_the_chance_tends_to(seed, target):
    p, right = held_out(40, 0.15, seed)
    far = max(chance_of_test(n, k, n + 300_000, target, LEVEL) for n, k in shares(p, right))
    assert queries_needed(p, right, precision=target, thresholds=p).ever == pytest.approx(
        far, abs=0.02
    )


def test_flawless_is_the_least_that_passes():
    for target in (0.5, 0.9, 0.95, 0.99):
        least = queries_needed([0.5], [1], precision=target, thresholds=[0.5]).flawless
        assert binomtest(least, least, target, "greater").pvalue <= DELTA
        assert binomtest(least - 1, least - 1, target, "greater").pvalue > DELTA


def test_a_smaller_chance_asks_for_less():
    p, right = held_out(40, 0.15, 3)
    sizes = [
        queries_needed(p, right, precision=0.95, chance=chance, thresholds=p).more
        for chance in (0.3, 0.5, 0.8)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] <= REACH * 40
    assert (
        queries_needed(*held_out(40, 0.15, 6), precision=0.95, thresholds=p).more is None
    )  # 5,575 would do


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([0.5], [1], {"precision": 1.0}), "precision"),
        (([0.5], [1], {"precision": 0.9, "chance": 0.0}), "chance"),
        (([0.5], [0.5], {"precision": 0.9}), "booleans"),
        (([0.5], [1, 0], {"precision": 0.9}), "correct"),
        (([1.5], [1], {"precision": 0.9}), "probability"),
    ],
)
def test_bad_input_is_named(given, message):
    p, right, options = given
    with pytest.raises(InputError, match=message):
        queries_needed(p, right, **options)
