"""A share of open-set queries that moved: estimates, the test of label shift, rules for a share."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.stats import binom, nbinom

from laplace_metric.calibration import (
    OpenSetFraction,
    Rule,
    calibrate_scores,
    guarantee,
)
from laplace_metric.calibration.guarantees._open_set_fraction import (
    at_fraction,
    estimated_fraction,
    rows_at_fraction,
)
from laplace_metric.errors import InputError
from tests.calibration.arrays import made_or_refused


def world(g, n, share, nearer=0.0):
    """Scores of first hits: N(0, 1) of open-set queries and wrong hits, N(2.5, 1) of right ones."""
    mated = g.random(n) >= share
    right = mated & (g.random(n) >= 0.1)
    score = g.normal(size=n) + 2.5 * right + nearer * ~mated
    return score[:, None], right[:, None], mated


@pytest.fixture(scope="module")
def calibration():
    score, right, mated = world(np.random.default_rng(0), 4_000, 0.3)
    return calibrate_scores(score, right, mated=mated)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_the_estimate_is_that_of_the_em_of_saerens(share):
    """Of two samples in bins of which the shares are known: the maximum of the likelihood."""
    g = np.random.default_rng(1)
    high, low = g.beta(3, 1, 60_000), g.beta(1, 3, 60_000)
    n = 5_000
    new = np.concatenate([g.beta(1, 3, int(share * n)), g.beta(3, 1, n - int(share * n))])
    found = estimated_fraction(new, high, low)
    edges = np.linspace(0, 1, 11)[1:-1]
    a, b, q = (np.bincount(np.searchsorted(edges, x), minlength=10) / len(x)
               for x in (high, low, new))  # fmt: skip
    s = 0.5
    for _ in range(500):
        s = float(q @ (s * b / ((1 - s) * a + s * b)))
    assert found.estimate == pytest.approx(s, abs=0.01)
    assert found.estimate == pytest.approx(share, abs=0.03)
    assert found.estimate < found.upper < found.estimate + 0.06


def test_bound_and_test_are_held_as_often_as_they_say():
    covered, refused, error = 0, 0, []
    for run in range(400):
        g = np.random.default_rng(run)
        high, low, share = g.beta(4, 1, 500), g.beta(1, 2, 60), 0.25
        wrong = g.random(300) < share
        new = np.where(wrong, g.beta(1, 2, 300), g.beta(4, 1, 300))
        found = estimated_fraction(new, high, low)
        covered += found.upper >= share
        refused += found.p_value < 0.05
        error.append(found.estimate - share)
    assert covered / 400 >= 0.975
    assert 0.04 <= refused / 400 <= 0.09
    assert abs(np.mean(error)) < 0.02


def test_queries_that_are_no_mixture_are_refused(calibration):
    g = np.random.default_rng(2)
    same = calibration.open_set_fraction(world(g, 600, 0.5)[0])
    other = calibration.open_set_fraction(world(g, 600, 0.5, nearer=1.2)[0])
    assert other.p_value < 1e-4 < same.p_value
    calibration.guarantee(precision=0.8, open_set_fraction=same)
    with pytest.raises(InputError, match="600 new queries.*no mixture .*calibrate again"):
        calibration.guarantee(precision=0.8, open_set_fraction=other)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_corrected_probabilities_are_calibrated(calibration, share):
    score, right, _ = world(np.random.default_rng(3), 20_000, share)
    p = calibration.probability(score, open_set_fraction=share)[:, 0]
    assert p.mean() == pytest.approx(right.mean(), abs=0.015)
    plain = calibration.probability(score)[:, 0]
    for low, high in ((0.0, 0.2), (0.2, 0.6), (0.6, 0.9), (0.9, 1.0)):
        some = (plain >= low) & (plain < high)
        assert p[some].mean() == pytest.approx(right[some, 0].mean(), abs=0.05)


def test_the_share_of_the_calibration_changes_nothing():
    g = np.random.default_rng(0)
    p, mated = g.random((50, 3)), (np.arange(50) % 4 > 0).astype(np.int8)
    share = float((mated == 0).mean())
    all_hit = np.ones(50, bool)
    np.testing.assert_allclose(at_fraction(p, share, p[:, 0], all_hit, mated), p)
    assert (at_fraction(p, share + 0.2, p[:, 0], all_hit, mated) <= p).all()
    assert (at_fraction(p, 0.999, np.ones(50), all_hit, mated) <= 1).all()
    some_hit = np.arange(50) % 3 > 0  # of an estimate, those with a hit are counted
    of_hits = OpenSetFraction(float((mated[some_hit] == 0).mean()), 0.9, 0.5, 60)
    np.testing.assert_allclose(at_fraction(p, of_hits, p[:, 0], some_hit, mated), p)
    np.testing.assert_allclose(at_fraction(p, share, p[:, 0], some_hit, mated), p)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_rows_at_a_share_are_a_sample_of_it(share):
    mated = np.repeat(np.array([1, 0, -1], np.int8), (300, 100, 20))
    rows = rows_at_fraction(mated, share)
    assert len(set(rows)) == len(rows)
    assert set(mated[rows]) <= {0, 1}
    n = len(rows)
    ends = binom.ppf([1e-6, 1 - 1e-6], n, share)
    assert ends[0] <= (mated[rows] == 0).sum() <= ends[1]

    def out(n):  # that the queries of a kind run out
        return max(binom.sf(100, n, share), binom.sf(300, n, 1 - share))

    assert out(n) <= 5e-4 < out(n + 1)
    assert nbinom.cdf(n - 101, 101, share) <= 5e-4 + 1e-12


def test_a_rule_for_a_share_holds_there():
    """2,000 queries, 30 % without a match; then half: without the correction it breaks."""
    broken, plain, given = 0, 0, 0
    for run in range(60):
        g = np.random.default_rng(run)
        score, right, mated = world(g, 2_000, 0.3)
        calibration = calibrate_scores(score, right, mated=mated, seed=run)
        later, truth, _ = world(g, 20_000, 0.5)

        def missed(rule, later=later, truth=truth):
            answered = rule(later).answered
            return bool(answered.any()) and truth[answered, 0].mean() < 0.8

        plain += missed(calibration.guarantee(precision=0.8))
        found = calibration.open_set_fraction(later[:500])
        for share in (0.5, found):
            try:
                rule = calibration.guarantee(precision=0.8, open_set_fraction=share)
            except InputError:
                continue
            given += 1
            broken += missed(rule)
    assert plain > 40
    assert given > 90
    assert broken <= 6


def test_a_rule_for_a_share_says_so_and_is_saved(calibration, tmp_path):
    later = world(np.random.default_rng(4), 500, 0.45)[0]
    for share in (0.45, calibration.open_set_fraction(later)):
        rule = calibration.guarantee(precision=0.8, open_set_fraction=share)
        said = r"confidence where (up to )?[\d.]+% of the queries (with a hit )?have no match \("
        assert re.search(said, str(rule))
        assert rule.proven == isinstance(share, float)
        rule.save(tmp_path / "rule.safetensors")
        again = Rule.load(tmp_path / "rule.safetensors")
        assert (str(again), again.open_set_fraction) == (str(rule), share)
        assert (again.value, again.n_tested) == (rule.value, rule.n_tested)
        bound = getattr(share, "upper", share)
        p, right = calibration.queries.probability[:, 0], calibration.queries.relevant[:, 0] == 1
        rows = rows_at_fraction(calibration.queries.mated, bound)
        spent = 0.001 if bound == share else 0.011
        grid = calibration.queries.grid
        wanted = guarantee(p[rows], right[rows], precision=0.8, confidence=0.95 + spent,
                           thresholds=grid if len(grid) else None)  # fmt: skip
        assert (rule.value, rule.n_tested) == (wanted.value, len(rows))
        assert rule.bound == pytest.approx(wanted.bound)
    stricter = calibration.guarantee(precision=0.8, open_set_fraction=0.45)
    assert stricter.value > calibration.guarantee(precision=0.8).value
    assert stricter.n_tested < len(calibration.queries.mated)


FEW = OpenSetFraction(0.3, 0.4, 0.5, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"open_set_fraction": 1.0}, "open_set_fraction=1.0: pass a number between 0 and 1"),
        ({"open_set_fraction": "x"}, "open_set_fraction"),
        ({"open_set_fraction": FEW, "confidence": 0.99}, "confidence=0.99 is too high"),
        ({"open_set_fraction": 0.3, "confidence": 0.9999}, "too high for open_set_fraction="),
        ({"precision": None, "recall": 0.8, "open_set_fraction": 0.3}, "is for precision="),
    ],
)
def test_bad_shares_are_named(calibration, change, message):
    with pytest.raises(InputError, match=message):
        calibration.guarantee(**{"precision": 0.5} | change)


def test_what_a_share_takes_is_named(calibration):
    with pytest.raises(InputError, match="12 new queries.*at least 30"):
        calibration.open_set_fraction(np.zeros((12, 1)))
    with pytest.raises(InputError, match="too few.*values"):
        estimated_fraction(np.ones(99), np.ones(99), np.ones(99))
    with pytest.raises(InputError, match="queries.*with and without"):
        at_fraction(np.ones((2, 1)), 0.3, np.ones(2), np.ones(2, bool), np.ones(2, np.int8))
    with pytest.raises(InputError, match="40 queries.*a match.*0 without"):
        rows_at_fraction(np.ones(40, np.int8), 0.3)
    score, right, mated = world(np.random.default_rng(0), 300, 0.3)
    crossed = calibrate_scores(score, right, mated=mated, cross_fit=5)
    with pytest.raises(InputError, match="calibrate with cross_fit=0"):
        crossed.guarantee(precision=0.5, open_set_fraction=0.3)


def test_a_match_is_a_match_in_the_collection():
    """A hit is not likelier to be a match than its query is to have one, and p stays in [0, 1]."""
    first = np.concatenate([np.full(50, 0.95), np.full(50, 0.05)])
    mated = np.repeat(np.array([1, 0], np.int8), 50)
    p = np.array([[0.01, 0.9]])
    all_hit = np.ones(100, bool)
    low, high = (at_fraction(p, share, first, all_hit, mated) for share in (0.05, 0.95))
    assert (low <= 1).all()
    # P(mated) is at least p: with odds p : 1 - p of a match, and shares that move by w_1 and w_0
    wanted = [0.9 * w / (0.9 * w + 0.1 * (2 - w)) for w in (1.9, 0.1)]
    np.testing.assert_allclose([low[0, 1], high[0, 1]], wanted, rtol=1e-12)


def world_without_hits(g, n, share):
    """Three of five mated queries have no hit within a radius."""
    mated = g.random(n) >= share
    no_hit = mated & (g.random(n) < 0.6)
    right = mated & ~no_hit & (g.random(n) < 0.97)
    score = np.where(no_hit, -np.inf, g.normal(np.where(right, 1.0, 0.35), 0.3))
    return score[:, None], (right & ~no_hit)[:, None], mated


def test_a_stated_share_is_one_of_all_queries_those_without_a_hit_among_them():
    later = world_without_hits(np.random.default_rng(9), 60_000, 0.4)
    given = broken = too_high = 0
    for run in range(20):
        held_out = world_without_hits(np.random.default_rng(run), 4_000, 0.1)
        calibration = calibrate_scores(*held_out[:2], mated=held_out[2])
        rule, _ = made_or_refused(calibration.guarantee, precision=0.9, open_set_fraction=0.4)
        if rule is None:
            continue
        answered = rule(later[0]).answered
        right = later[1][answered, 0].mean()
        given, broken = given + 1, broken + (right < 0.9)
        precision, low = rule.precision_at(0.4)
        accepted = (held_out[0][:, 0] >= rule.score) & np.isfinite(held_out[0][:, 0])
        of = {kind: accepted[held_out[2] == kind].mean() for kind in (True, False)}
        a = (accepted & held_out[1][:, 0])[held_out[2]].mean()
        assert precision == pytest.approx(0.6 * a / (0.6 * of[True] + 0.4 * of[False]))
        too_high += low > right
    assert given >= 10
    assert max(broken, too_high) <= 3


def test_a_probability_for_a_stated_share_is_that_of_a_calibration_with_it():
    g = np.random.default_rng(0)
    calibration, direct = (
        calibrate_scores(score, right, mated=mated)
        for score, right, mated in (world_without_hits(g, 40_000, share) for share in (0.1, 0.4))
    )
    scores = np.linspace(0.5, 1.3, 9)
    p = calibration.probability(scores, open_set_fraction=0.4)
    np.testing.assert_allclose(p, direct.probability(scores), atol=0.03)


def test_an_estimate_is_guaranteed_up_to_its_bound_and_says_so(calibration):
    share = calibration.open_set_fraction(world(np.random.default_rng(4), 600, 0.4)[0])
    rule = calibration.guarantee(precision=0.8, open_set_fraction=share)
    said = f"where up to {share.upper:.1%} of the queries with a hit have no match (simulated"
    assert said in str(rule)
