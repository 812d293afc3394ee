"""What a promise lacks, against enumeration with other definitions, and against carrying it out."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest

from laplace_metric.calibration import QueriesNeeded, guarantee
from laplace_metric.calibration.guarantees._queries_needed import REACH, chances_of_test
from laplace_metric.calibration.guarantees._test_sequences import SHARES, STARTS
from laplace_metric.errors import InputError
from tests.calibration.arrays import queries_needed

DELTA = 0.05


def enumerated(n: int, share: float, target: float, level: float) -> float:
    """The same chance, one outcome at a time."""
    passing = [k for k in range(n + 1) if binomtest(k, n, target, "greater").pvalue <= level]
    return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in passing)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 80),
    share=st.floats(0, 1),
    target=st.sampled_from((0.3, 0.8, 0.9, 0.99)),
    level=st.sampled_from((0.005, 0.02, 0.05)),
)
def test_the_chance_is_that_of_all_outcomes(n, share, target, level):
    (found,) = chances_of_test(np.array([n]), np.array([share]), target, np.array([level]))
    assert found == pytest.approx(enumerated(n, share, target, level), abs=1e-9)


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
    """The largest chance of a start, of which all queries are new and right as its bound says.

    Those that can never pass leave their level to the next.
    """
    spare, found = 0.0, 0.0
    for n, k in shares(p, right):
        then = -(-(len(p) + more) * n // len(p))
        level = DELTA / STARTS + spare
        if target**then > level:
            spare += DELTA / STARTS
            continue
        spare = 0.0
        least = binomtest(k, n).proportion_ci(0.8, method="exact").low  # 90 %, of one side
        found = max(found, enumerated(then, least, target, level))
    return found


@pytest.mark.parametrize(("seed", "target"), [(10, 0.85), (11, 0.8), (15, 0.7)])
def test_one_query_fewer_is_not_enough(seed, target):
    p, right = held_out(40, 0.1, seed)
    missing = queries_needed(p, right, precision=target, thresholds=p)
    assert missing.more_queries is not None
    assert 0 < missing.more_queries < 400
    assert largest_chance(p, right, missing.more_queries, target) >= 0.8
    assert largest_chance(p, right, missing.more_queries - 1, target) < 0.8


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), target=st.floats(0.2, 0.95), n=st.integers(1, 120))
def test_nothing_is_missing_just_where_the_promise_can_be_made(seed, target, n):
    p, right = held_out(n, 0.2, seed)
    missing = queries_needed(p, right, precision=target, thresholds=p)
    try:
        guarantee(p, right, precision=target, thresholds=p)
    except InputError:
        assert missing.more_queries != 0
    else:
        assert missing.more_queries == 0


WORLDS = {
    "scores that order well": lambda p: p**0.1,
    "scores near the target": lambda p: np.full(len(p), 0.925),
    "few errors": lambda p: np.full(len(p), 0.98),
    "the surest are wrong": lambda p: np.where(p > 0.8, 0.8, 0.97),
    "ties": lambda p: 0.85 + 0.12 * p.round(1),
}


def of_world(name: str, n: int, seed: int):
    g = np.random.default_rng([seed, n, len(name)])
    p = g.uniform(size=n)
    right = g.uniform(size=n) < WORLDS[name](p)
    return (p.round(1) if name == "ties" else p), right


def kept(name: str, n: int, trials: int) -> tuple[int, int]:
    """Numbers that were named where .9 is refused, and those with which it was guaranteed."""
    named = made = 0
    for seed in range(trials):
        p, right = of_world(name, n, seed)
        more = queries_needed(p, right, precision=0.9).more_queries
        if not more:
            continue
        new, new_right = of_world(name, more, 10_000 + seed)
        named += 1
        try:
            guarantee(np.r_[p, new], np.r_[right, new_right], precision=0.9)
        except InputError:
            continue
        made += 1
    return named, made


def really_needed(p, right, new, new_right) -> float:
    """Number of new queries, of 40 numbers, with which .9 is guaranteed first."""
    for more in np.unique(np.geomspace(4, len(new), 40).astype(int)):
        with suppress(InputError):
            guarantee(np.r_[p, new[:more]], np.r_[right, new_right[:more]], precision=0.9)
            return more
    return math.inf


@pytest.mark.parametrize("world", ["few errors", "the surest are wrong", "scores near the target"])
def test_the_number_of_an_even_chance_is_near_to_what_is_really_needed(world):
    """Medians over worlds in which they are named; the careful one is far larger."""
    said, needed, careful = [], [], []
    for seed in range(24):
        p, right = of_world(world, 300 if world != "few errors" else 80, seed)
        missing = queries_needed(p, right, precision=0.9)
        if not missing.even_chance:
            continue
        said.append(missing.even_chance)
        careful.append(missing.more_queries or math.inf)
        needed.append(really_needed(p, right, *of_world(world, 3_000, 10_000 + seed)))
    assert len(said) > 5
    assert np.median(needed) / 2.5 < np.median(said) < 2.5 * np.median(needed)
    assert np.median(careful) > 4 * np.median(needed)


def largest_even_chance(p, right, more: int, target: float) -> float:
    """The largest chance of a start: known hits as they are, new ones right by the median share."""
    saved, begun, found = 0.0, False, 0.0
    for n, k in shares(p, right):
        then = -(-(len(p) + more) * n // len(p))
        level = DELTA / STARTS + (0.0 if begun else saved)
        if not begun and target**then > level:
            saved += DELTA / STARTS
            continue
        begun, saved = True, 0.0
        least = next(c for c in range(then + 2) if binom.sf(c - 1, then, target) <= level)
        median = beta.ppf(0.5, k, n - k + 1)
        found = max(found, float(binom.sf(least - k - 1, then - n, median)))
    return found


@pytest.mark.parametrize(("seed", "target"), [(10, 0.85), (11, 0.8), (15, 0.7)])
def test_one_query_fewer_has_no_even_chance(seed, target):
    p, right = held_out(40, 0.1, seed)
    more = queries_needed(p, right, precision=target, thresholds=p).even_chance
    assert 0 < more < 400
    assert largest_even_chance(p, right, more, target) >= 0.5
    assert largest_even_chance(p, right, more - 1, target) < 0.5


def test_a_range_is_told_in_words():
    assert QueriesNeeded(5_432, 97, 100, 30, even_chance=961).told("queries") == (
        "about 970 to 5,500 more queries"
    )
    assert (
        QueriesNeeded(None, 9, 9, 30, "why", 3).told("rows") == "about 10 more rows, or many more"
    )
    assert QueriesNeeded(12, 9, 9, 30, even_chance=12).told("rows") == "about 12 more rows"
    assert QueriesNeeded(None, 9, 9, 30, "why").told("rows") == ""
    assert QueriesNeeded(12, 9, 9, 30, even_chance=7).times(2) == QueriesNeeded(
        24, 9, 9, 30, even_chance=14
    )


@pytest.mark.parametrize("n", [80, 300])
@pytest.mark.parametrize("world", WORLDS)
def test_with_that_many_more_the_promise_is_made_as_often_as_said(world, n):
    """80 % is said; a count below it by chance has a probability of 5 % at most."""
    named, made = kept(world, n, 100)
    assert binom.cdf(made, named, 0.8) > 0.05


def test_where_no_number_is_enough_hardly_any_is_named():
    """Each answer is right with the probability that is asked for, or less."""
    for share in (0.88, 0.9):
        named = 0
        for seed in range(100):
            g = np.random.default_rng(seed)
            p, right = g.uniform(size=300), g.uniform(size=300) < share
            named += bool(queries_needed(p, right, precision=0.9).more_queries)
        assert named <= 100 // 10


@pytest.mark.parametrize("n", [*range(10, 30)])
def test_flawless_answers_that_are_too_few_are_not_told_that_one_more_will_do(n):
    p = np.linspace(0, 1, n)
    missing = queries_needed(p, p >= 0, precision=0.9)
    assert missing.more_queries is None
    assert missing.reason == (
        "how many more it takes cannot be told from these queries (the least are 30 accepted ones "
        "that are all right)"
    )


def test_no_number_of_queries_helps_answers_that_are_wrong():
    p = torch.linspace(0, 1, 400)
    right = torch.arange(400) % 5 > 0
    missing = queries_needed(p, right, precision=0.95, thresholds=p)
    assert missing.more_queries is None
    assert missing.reason == "of more queries like these, not enough would be right"
    assert (missing.surest, missing.right) in {(n, k) for n, k in shares(p.numpy(), right.numpy())}
    assert missing.right / missing.surest == pytest.approx(0.8, abs=0.02)
    assert queries_needed(p, right, precision=0.75).more_queries is not None


def test_flawless_is_the_least_that_passes():
    for target in (0.5, 0.9, 0.95, 0.99):
        least = queries_needed([0.5], [1], precision=target, thresholds=[0.5]).flawless
        assert binomtest(least, least, target, "greater").pvalue <= DELTA
        assert binomtest(least - 1, least - 1, target, "greater").pvalue > DELTA


def test_a_smaller_chance_asks_for_less():
    p, right = held_out(40, 0.15, 10)
    sizes = [
        queries_needed(p, right, precision=0.8, chance=chance, thresholds=p).more_queries
        for chance in (0.3, 0.5, 0.8)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] <= REACH * 40
    p, right = held_out(40, 0.15, 1)
    assert queries_needed(p, right, precision=0.8, chance=0.3, thresholds=p).more_queries == 531
    assert queries_needed(p, right, precision=0.8, thresholds=p).more_queries is None


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
