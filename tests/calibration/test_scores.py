"""Decisions for any scores: features, thresholds and rates against loops; guarantees on digits."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from laplace_metric.calibration import Rule, ScoreCalibration, _calibrate_scores, calibrate_scores
from laplace_metric.calibration.guarantees._biometric_rates import (
    fewest_false,
    threshold_of_false,
)
from laplace_metric.calibration.guarantees._calibration_queries import error_rates
from laplace_metric.calibration.guarantees._open_set_fraction import precision_of_mixture
from laplace_metric.calibration.guarantees._risk_control import threshold_of_miss
from laplace_metric.calibration.probability import _match_probability
from laplace_metric.calibration.probability._features import PairFeatures
from laplace_metric.calibration.probability._held_out import FEW, on_answering_scale
from laplace_metric.calibration.probability._match_probability import fit_probability
from laplace_metric.calibration.scores._score_features import checked_scores, score_features
from laplace_metric.calibration.scores._score_model import score_sets
from laplace_metric.errors import (
    FewQueriesWarning,
    FileFormatError,
    InputError,
    NonFiniteError,
    ScoresWarning,
)
from tests.saved_files import flip, of_version


def drawn(n=400, k=5, seed=0, open_set=0.2):
    g = np.random.default_rng(seed)
    relevant = (np.arange(k) < g.integers(0, 3, n)[:, None]) & (g.random(n) >= open_set)[:, None]
    score = g.normal(size=(n, k)) + 2 * relevant
    order = np.argsort(-score, 1)
    return np.take_along_axis(score, order, 1), np.take_along_axis(relevant, order, 1)


@pytest.fixture(scope="module")
def digits():
    """Distances to the ten nearest of 500 digits 0 to 7, of queries of all ten digits."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    gallery = np.flatnonzero(y < 8)[:500]
    rest = np.setdiff1d(np.arange(len(x)), gallery)
    distance, rows = NearestNeighbors(n_neighbors=10).fit(x[gallery]).kneighbors(x[rest])
    return distance, y[gallery][rows] == y[rest][:, None], y[rest] < 8


# Features.


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from([1e-6, 1.0, 1e6]), st.integers(0, 99))
def test_features_are_those_of_a_loop(n, k, scale, seed):
    g = np.random.default_rng(seed)
    values = scale * np.round(g.normal(size=(n, k)), 1)  # with ties
    exists = np.arange(k) < g.integers(1, k + 1, n)[:, None]
    found = score_features(np.where(exists, values, 0)[..., None], exists, []).values
    for q, size in enumerate(exists.sum(1)):
        v = values[q, :size]
        order = sorted(range(size), key=lambda i: (-v[i], i))
        for place, i in enumerate(order):
            follows = v[order[place + 1]] if place + 1 < size else v[i]
            z = (v[i] - v.mean()) / v.std() if v.std() > 1e-9 * scale else 0.0
            wanted = [v[i], v.max() - v[i], v[i] - follows, z, np.log(i + 1)]
            np.testing.assert_allclose(found[q, i], wanted, rtol=1e-9, atol=1e-9 * scale)
        assert not found[q, size:].any()


@pytest.mark.parametrize("change", [lambda s: 1e4 * s - 3e5, lambda s: 1e-4 * s + 0.5])
def test_units_of_the_scores_change_no_decision(change):
    score, relevant = drawn()
    one, other = calibrate_scores(score, relevant), calibrate_scores(change(score), relevant)
    np.testing.assert_allclose(
        one.probability(score), other.probability(change(score)), rtol=1e-3, atol=1e-4
    )


def test_a_distance_is_a_similarity_with_its_sign_changed():
    score, relevant = drawn()
    one = calibrate_scores(score, relevant)
    other = calibrate_scores(-score, relevant, kind="distance")
    np.testing.assert_array_equal(one.queries.probability, other.queries.probability)


def test_the_probability_rises_with_the_score():
    g = np.random.default_rng(0)
    right = g.random(600) < 0.5
    calibration = calibrate_scores((g.normal(size=600) + right)[:, None], right[:, None])
    assert (np.diff(calibration.probability(np.linspace(-9, 9, 200)[:, None])[:, 0]) >= 0).all()


def test_a_second_scorer_and_evidence_teach_something():
    g = np.random.default_rng(0)
    right = g.random((800, 1)) < 0.5
    blind, seeing = g.normal(size=(800, 1)), g.normal(size=(800, 1)) + 3 * right
    alone = calibrate_scores(blind, right)
    both = calibrate_scores(np.stack([blind, seeing], -1), right, kind=("similarity", "score"))
    extra = calibrate_scores(blind, right, evidence={"seeing": seeing[:, 0]})
    loss = [min(c.losses.values()) for c in (alone, both, extra)]
    assert loss[0] > 0.6
    assert max(loss[1:]) < 0.35
    assert both.chosen.startswith("values")
    assert extra.chosen.startswith("evidence")
    p = extra.probability(blind, seeing=seeing[:, 0])
    assert p[right].mean() > p[~right].mean() + 0.5


# Rates and their thresholds.


@given(st.integers(1, 400), st.sampled_from([0.3, 0.05, 0.01]), st.sampled_from([0.05, 0.2]))
def test_a_false_rate_is_exceeded_with_probability_delta_at_most(n, target, delta):
    """Of uniform p, the rate above p_(r) exceeds the target if r - 1 or fewer are that high."""
    false = np.sort(np.random.default_rng(n).random(n))
    found = threshold_of_false(false, target, delta)
    if found is None:
        assert n < fewest_false(target, delta)
        return
    r = int((false >= found[0]).sum()) + 1  # accepted are those above p_(r)
    assert binom.cdf(r - 1, n, target) <= delta
    assert binom.cdf(r, n, target) > delta  # one more would exceed it
    assert found[1] <= target + 1e-9


def test_ties_of_false_ones_are_all_rejected():
    value, _ = threshold_of_false(np.r_[np.zeros(500), np.full(20, 0.7)], 0.02, 0.05)
    assert value > 0.7


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.2, 0.1]), st.booleans())
def test_what_is_passed_on_is_that_of_a_search_over_all_thresholds(seed, miss, tied):
    g = np.random.default_rng(seed)
    n, k = 60, 4
    p = g.random((n, k)).round(1 if tied else 9)
    relevant = (g.random((n, k)) < 0.4).astype(np.int8)
    total = relevant.sum(1) + g.integers(0, 2, n) * (g.random() < 0.3)

    def risk(t):
        losses = []
        for q in np.flatnonzero(total):
            kept = max((i + 1 for i in range(k) if p[q, i] >= t), default=0)
            losses.append(1 - relevant[q, :kept].sum() / total[q])
        return (sum(losses) + 1) / (len(losses) + 1)

    possible = [t for t in [*np.unique(p), np.inf] if risk(t) <= miss + 1e-9]
    if not possible:
        with pytest.raises(InputError, match="cannot be guaranteed"):
            threshold_of_miss(p, relevant, total.astype(float), miss)
        return
    t = threshold_of_miss(p, relevant, total.astype(float), miss)
    assert risk(t) <= miss + 1e-9
    assert risk(t) == pytest.approx(risk(max(possible)))


def test_rates_are_those_of_a_count():
    p = np.array([[0.9, 0.2], [0.8, 0.7], [0.3, 0.1], [0.6, 0.0]])
    relevant = np.array([[1, 0], [0, 1], [0, 0], [-1, 0]], np.int8)
    found = error_rates(0.5, p, relevant, np.array([1, 1, 0, -1], np.int8))
    assert found == {
        "coverage": 3 / 4,
        "precision": 1 / 2,
        "fmr": 1 / 5,
        "fnmr": 0.0,
        "fpir": 0.0,
        "fnir": 1 / 2,
    }


def test_a_rate_of_which_nothing_was_judged_is_left_out():
    all_mated = np.ones(2, np.int8)
    found = error_rates(0.5, np.array([[0.9], [0.2]]), np.ones((2, 1), np.int8), all_mated)
    assert set(found) == {
        *("coverage", "precision", "fnmr"),
        "fnir",
    }


def test_precision_of_a_mixture_is_that_of_the_queries_at_their_own_share():
    score, relevant = drawn(2_000, open_set=0.4)
    rule = calibrate_scores(score, relevant).guarantee(recall=0.8)
    c = rule.scores
    share = float((c.queries.mated == 0).mean())
    precision, bound = rule.precision_at([0.0, share, 1.0])
    assert precision[1] == pytest.approx(rule.rates()["precision"])
    assert precision[0] > precision[1] > precision[2] == 0.0
    assert (bound <= precision).all()
    first = c.queries.probability[:, 0]
    lower = precision_of_mixture(
        np.array([share]),
        rule.value,
        first,
        c.queries.relevant[:, 0],
        c.queries.mated,
        1e-9,
    )[1]
    assert lower < bound[1]


# Guarantees.


def test_guarantees_hold_on_digits_that_no_one_saw(digits):
    distance, relevant, mated = digits
    half = len(mated) // 2
    calibration = calibrate_scores(
        distance[:half], relevant[:half], kind="distance", mated=mated[:half]
    )
    new, right, known = distance[half:], relevant[half:], mated[half:]
    rule = calibration.guarantee(precision=0.95)
    answered = rule(new).answered
    assert answered.mean() > 0.6
    assert right[answered, 0].mean() >= 0.95
    rule = calibration.guarantee(fpir=0.1)
    assert rule(new).answered[~known].mean() <= 0.1
    kept = calibration.keep_relevant(new, 0.1)
    rows = right.any(1)
    missed = (right & (np.arange(10) >= kept[:, None])).sum(1)[rows] / right.sum(1)[rows]
    assert missed.mean() < 0.15
    assert kept[rows].mean() < 10


def test_a_false_match_rate_counts_one_comparison_a_query():
    score, relevant = drawn(2_000)
    calibration = calibrate_scores(score, relevant)
    rule = calibration.guarantee(fmr=0.02)
    assert rule.n_tested == int((calibration.queries.relevant == 0).any(1).sum())
    assert rule.rates()["fmr"] < 0.03
    assert rule.bound <= 0.02


def test_what_cannot_be_guaranteed_says_how_many_queries_it_takes():
    score, relevant = drawn(200)
    calibration = calibrate_scores(score, relevant)
    with pytest.raises(InputError, match="takes 299 queries .* half.* 42.*ask for less"):
        calibration.guarantee(fpir=0.01)
    halves = calibrate_scores(score, relevant, cross_fit=0)
    with pytest.raises(InputError, match=r"calibrate on.*[\d,]+ more .*cross_fit=5 all"):
        halves.guarantee(precision=0.6)
    with pytest.raises(InputError, match=r"precision=0.999 .*guaranteed"):
        calibration.guarantee(precision=0.999)
    with pytest.raises(InputError, match="at least.*99 queries"):
        calibration.keep_relevant(score, 0.01)
    assert halves.queries_needed(0.9).flawless == 29
    with pytest.raises(InputError, match="one of precision=.*recall="):
        calibration.guarantee(precision=0.9, recall=0.9)


def test_a_cross_fitted_calibration_tests_every_query():
    score, relevant = drawn(300)
    halves = calibrate_scores(score, relevant, cross_fit=0)
    crossed = calibrate_scores(score, relevant)
    assert (len(halves.queries.mated), len(crossed.queries.mated)) == (150, 300)
    rule = crossed.guarantee(precision=0.75)
    assert "95% confidence (simulated, not proven)\non 300 cross-fitted queries" in str(rule)
    assert rule.n_tested > 1.8 * halves.guarantee(precision=0.75).n_tested
    p, truth = rule.scores.probability(score), rule.scores.queries.probability
    order = np.random.default_rng(0).permutation(300)
    assert not np.isclose(truth, p[order]).all()  # ordered by other models
    assert np.corrcoef(np.sort(p[:, 0]), np.sort(truth[:, 0]))[0, 1] > 0.99


def test_what_does_not_hold_cross_fitted_is_refused():
    score, relevant = drawn(300)
    crossed = calibrate_scores(score, relevant, cross_fit=5)
    for ask in (
        lambda: crossed.guarantee(recall=0.5),
        lambda: crossed.guarantee(fmr=0.1),
        lambda: crossed.guarantee(fpir=0.1),
        lambda: crossed.keep_relevant(score, 0.3),
    ):
        with pytest.raises(InputError, match="calibrate with cross_fit=0"):
            ask()


def test_by_default_few_queries_are_cross_fitted_and_the_rest_is_proven(tmp_path):
    score, relevant = drawn(FEW - 1)
    found, halves = (calibrate_scores(score, relevant, cross_fit=c) for c in (None, 0))
    assert found.cross_fitted
    assert not halves.cross_fitted
    assert not calibrate_scores(*drawn(FEW)).cross_fitted
    for rate in ("fmr", "fpir", "recall"):
        proven, rule = (c.guarantee(**{rate: 0.3}) for c in (halves, found))
        assert str(rule) == str(proven)
        assert "simulated" not in str(rule)
    assert "simulated" in str(found.guarantee(precision=0.8))
    rule.save(tmp_path / "rule.safetensors")
    found.save(tmp_path / "calibration.safetensors")
    for again in (
        Rule.load(tmp_path / "rule.safetensors"),
        ScoreCalibration.load(tmp_path / "calibration.safetensors").guarantee(recall=0.3),
    ):
        np.testing.assert_array_equal(again(score).answered, proven(score).answered)
    for c in (found, ScoreCalibration.load(tmp_path / "calibration.safetensors")):
        np.testing.assert_array_equal(c.keep_relevant(score, 0.2), halves.keep_relevant(score, 0.2))
        assert c.open_set_fraction(score) == halves.open_set_fraction(score)
        share = {"precision": 0.6, "open_set_fraction": 0.4}
        assert str(c.guarantee(**share)) == str(halves.guarantee(**share))


def test_a_half_without_errors_fits_a_probability_too():
    right = np.ones(300, bool)
    right[np.random.default_rng(0).permutation(300)[150::20]] = False  # all in the second half
    score = np.random.default_rng(1).normal(size=300) + right
    with pytest.warns(FewQueriesWarning, match="only 0.*150 queries"):
        halves = calibrate_scores(score, right, cross_fit=0)
    assert str(halves.guarantee(recall=0.5))
    found = calibrate_scores(np.stack([score, score - 1], 1), np.stack([right, right], 1))
    assert found.guarantee(precision=0.9)(np.stack([score, score - 1], 1)).answered.any()
    assert found.guarantee(recall=0.5).proven


@pytest.mark.parametrize("kind", ["similarity", "distance", "score"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("calibrator", ["logistic", "beta", "isotonic"])
def test_the_score_of_a_rule_is_where_it_begins_to_accept(kind, scale, calibrator, monkeypatch):
    monkeypatch.setattr(_match_probability, "CALIBRATORS", (calibrator,))
    g = np.random.default_rng(0)
    right = g.random(400) < 0.7
    score = scale * (g.normal(size=400) + 3 * right - 5) * (-1 if kind == "distance" else 1)
    calibration = calibrate_scores(score, right, kind=kind)
    assert calibration.chosen == f"value, {calibrator}"
    rule = calibration.guarantee(precision=0.9)
    worse = np.inf if kind == "distance" else -np.inf
    assert rule([rule.score, np.nextafter(rule.score, worse)]).answered.tolist() == [True, False]
    better = score <= rule.score if kind == "distance" else score >= rule.score
    np.testing.assert_array_equal(rule(score).answered, better)
    assert f"accepts a {kind} of {rule.score:.6g} or {'less' if worse > 0 else 'more'}" in str(rule)


def test_where_more_than_a_score_decides_there_is_none():
    g = np.random.default_rng(0)
    right = g.random((800, 1)) < 0.5
    seeing = g.normal(size=800) + 3 * right[:, 0]
    rule = calibrate_scores(g.normal(size=(800, 1)), right, evidence={"seeing": seeing})
    rule = rule.guarantee(precision=0.8)
    assert rule.score is None
    assert "accepts the first hit if its match probability is at least" in str(rule)
    alone = calibrate_scores(seeing, right[:, 0]).guarantee(precision=0.8)
    assert replace(alone, value=0.0).score == -np.inf
    assert replace(alone, value=1.1).score == np.inf
    assert "accepts the first hit" in str(replace(alone, value=1.1))


def test_one_score_and_one_judgement_a_pair():
    score, relevant = drawn(k=1)
    flat, columns = calibrate_scores(score[:, 0], relevant[:, 0]), calibrate_scores(score, relevant)
    np.testing.assert_array_equal(flat.queries.probability, columns.queries.probability)
    p = flat.probability(score[:, 0])
    assert p.shape == (400,)
    np.testing.assert_array_equal(p, columns.probability(score)[:, 0])
    rule = flat.guarantee(precision=0.75)
    np.testing.assert_array_equal(rule(score[:, 0]).answered, rule(score).answered)


def test_no_query_is_judged_by_a_model_that_saw_it(monkeypatch):
    seen, fit = [], _calibrate_scores.ListModel.fit
    score, relevant = drawn(100)

    def noted(features, *rest, **like):
        seen.append((features, fit(features, *rest, **like)))
        return seen[-1][1]

    monkeypatch.setattr(_calibrate_scores.ListModel, "fit", noted)
    crossed = calibrate_scores(score, relevant, cross_fit=4)
    (_, whole), *others = seen
    assert len(others) == 4
    assert whole is crossed.model
    features = score_features(score[..., None], np.ones((100, 5), bool), [])
    held_out, judged_by = np.empty((100, 5)), np.zeros(100, int)
    for seen_by, model in others:
        known = seen_by.values[None, :, 0, 0]
        out = ~(features.values[:, None, 0, 0] == known).any(1)
        assert out.sum() == 25
        held_out[out], judged_by = model(features.of_queries(out)), judged_by + out
    assert (judged_by == 1).all()
    wanted = on_answering_scale(held_out, whole(features), np.ones((100, 5), bool))
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_array_equal(crossed.queries.probability, wanted[order])


def test_first_hits_are_judged_by_what_tells_first_hits_apart():
    """Hits behind the first are relevant whatever their score is; one model would believe that."""
    g = np.random.default_rng(0)

    def lists(n):
        score = -np.sort(-g.normal(size=(n, 10)), 1)
        relevant = g.random((n, 10)) < 0.5
        relevant[:, 0] = g.random(n) < 1 / (1 + np.exp(-8 * (score[:, 0] - 1.5)))
        return score, relevant

    calibration, (new, right) = calibrate_scores(*lists(1_000)), lists(4_000)
    alone = calibrate_scores(*(column[:, 0] for column in lists(1_000)))
    p = calibration.probability(new)
    assert p[:, 1:].std() < 0.05
    loss = [
        -np.log(np.where(right[:, 0], q, 1 - q)).mean()
        for q in (p[:, 0], alone.probability(new[:, 0]))
    ]
    assert loss[0] < loss[1] + 0.01


# Files.


def test_a_rule_of_a_file_decides_as_before(tmp_path):
    score, relevant = drawn()
    rule = calibrate_scores(score, relevant).guarantee(precision=0.8)
    rule.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    assert str(again) == str(rule)
    np.testing.assert_array_equal(again(score).answered, rule(score).answered)
    assert ScoreCalibration.load(tmp_path / "rule.safetensors").chosen == rule.scores.chosen
    calibrate_scores(score, relevant).save(tmp_path / "calibration.safetensors")
    with pytest.raises(FileFormatError, match="without a rule"):
        Rule.load(tmp_path / "calibration.safetensors")


@pytest.mark.parametrize("damage", ["value", "version", "cut"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "rule.safetensors"
    calibrate_scores(*drawn()).guarantee(recall=0.8).save(path)
    if damage == "value":
        flip(path, "scores/queries.probability")
    elif damage == "version":
        of_version(path, "scores", 99)
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match=r"rule\.safetensors"):
        Rule.load(path)


def test_scores_need_no_torch():
    code = (
        "import sys, numpy as np; from laplace_metric.calibration import calibrate_scores as c;"
        "g = np.random.default_rng(0); y = g.random((99, 1)) < .5;"
        "c(g.normal(size=(99, 1)) + 2 * y, y).guarantee(recall=.7);"
        "from laplace_metric.integrations import passed_on;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Bad input.

SCORE, RELEVANT = drawn(60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": SCORE[:, ::-1]}, "60 of 60 queries do not fall from hit to hit.*'distance'"),
        ({"scores": SCORE, "kind": "distance"}, "do not rise from hit to hit.*'similarity'"),
        ({"scores": SCORE[:, 0]}, r"relevant has shape \(60, 5\): pass \(60, 1\)"),
        ({"scores": SCORE[0, 0]}, r"scores is \S+: pass \[Q, k\]"),
        ({"scores": RELEVANT, "relevant": SCORE}, "scores are booleans: pass the scores first"),
        ({"scores": RELEVANT.tolist()}, "scores are booleans: pass the scores first"),
        ({"relevant": np.where(RELEVANT, "yes", "no")}, "relevant holds '(yes|no)': pass"),
        ({"relevant": np.full((60, 5), "no", object)}, "relevant holds 'no': pass booleans"),
        ({"relevant": RELEVANT + 6}, "relevant holds [67]: pass booleans"),
        ({"mated": np.arange(60)}, "mated holds 2: pass booleans"),
        ({"scores": SCORE, "kind": ("score", "score")}, r"pass \[Q, k, 2\]"),
        ({"scores": np.where(SCORE.max() == SCORE, np.nan, SCORE)}, "NaN"),
        ({"scores": np.where(SCORE.max() == SCORE, np.inf, SCORE)}, "infinite in front"),
        ({"scores": np.full_like(SCORE, -np.inf)}, "60 queries have no hit"),
        ({"scores": np.full_like(SCORE, 0.7)}, "scores are all 0.7"),
        ({"scores": SCORE[:18], "relevant": RELEVANT[:18]}, "18 queries to calibrate on"),
        ({"relevant": RELEVANT[:, :2]}, r"relevant has shape \(60, 2\): pass \(60, 5\)"),
        ({"relevant": RELEVANT * 2}, "relevant holds 2: pass booleans, or 1, 0, and -1"),
        ({"relevant": np.full_like(RELEVANT, -1, dtype=int)}, "no hit is judged"),
        ({"relevant": np.where(RELEVANT, 1, -1)}, r"all \d+ judged hits are relevant, and \d+ are"),
        ({"scores": (SCORE, np.arange(300).reshape(60, 5))}, r"a pair of arrays, such as \(D, I\)"),
        ({"scores": {"a": {"b": 0.3}}}, "scores is a dict by 'a': pass an array"),
        ({"scores": iter(SCORE)}, "scores is a .*iterator: pass an array or a list"),
        ({"mated": np.zeros(60)}, r"mated is 0 for \d+ queries with a relevant hit"),
        ({"total": np.zeros(60)}, "total: pass"),
        ({"evidence": {"age": np.zeros(3)}}, r"age has shape \(3,\)"),
        ({"evidence": {"age": np.full(60, np.inf)}}, "age holds NaN or infinity"),
        ({"kind": "cosine"}, "kind"),
        ({"kind": 3}, "kind"),
        ({"kind": ("similarity", 3)}, "kind"),
        ({"evidence": [1]}, r"evidence=\[1\]: pass columns by their names"),
        (
            {"evidence": {"scores": SCORE}},
            "other than scores, kind, miss, open_set_fraction, classes",
        ),
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"cross_fit": 40}, "cross_fit=40: pass 0, or from 2 to 10"),
        ({"scores": csr_matrix(SCORE)}, r"scores is sparse \(csr_matrix\).*pass an array"),
        ({"relevant": csr_matrix(RELEVANT)}, "relevant is sparse"),
        ({"evidence": {"age": csr_matrix(SCORE)}}, "age is sparse"),
        ({"scores": pd.Series(["a"] * 60)}, "scores has dtype"),
        ({"evidence": {"age": [None, *range(59)]}}, "age holds None in row 0"),
        ({"evidence": {"age": [*range(59), np.nan]}}, r"NaN or infinity in row 59 \(1 rows\)"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"scores": SCORE, "relevant": RELEVANT} | change
    error = NonFiniteError if "NaN" in message else InputError
    with pytest.raises(error, match=message):
        calibrate_scores(arguments.pop("scores"), arguments.pop("relevant"), **arguments)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_flawless_judgements_guarantee_what_the_binomial_allows():
    """200 of 200, as much as 199 of 200; the probability is that of (n + 1/2) / (n + 1)."""
    score = np.random.default_rng(0).normal(0.8, 0.05, 200)
    with pytest.warns(FewQueriesWarning, match="only 0.*200"):
        found = calibrate_scores(score, np.ones(200))
    assert found.queries.probability.mean() == pytest.approx(200.5 / 201, abs=1e-3)
    rule = found.guarantee(precision=0.95)
    assert rule.proven
    assert rule(score).answered.all()
    assert not rule([score.min() - 0.01]).answered[0]
    assert found.largest_guarantee().target == 0.97
    for k in (1, 3):
        lists = np.sort(np.random.default_rng(1).normal(0.8, 0.05, (200, k)), 1)[:, ::-1]
        several = np.stack([lists, lists], -1)
        for hits, kind in ((lists, "similarity"), (several, ("similarity", "score"))):
            with pytest.warns(FewQueriesWarning):
                found = calibrate_scores(hits, np.ones((200, k)), kind=kind)
            assert found.guarantee(precision=0.9)(hits).answered.any()
    with pytest.warns(FewQueriesWarning):
        wrong = calibrate_scores(score, np.zeros(200))
    with pytest.raises(InputError, match=r"support 0 \(.*4 surest, 0.*right"):
        wrong.guarantee(precision=0.5)
    assert wrong.guarantee(fmr=0.1).proven


def test_new_scores_must_be_like_those_that_calibrated():
    calibration = calibrate_scores(SCORE, RELEVANT, evidence={"age": np.arange(60.0)})
    with pytest.raises(InputError, match="2 hits.*pass 5"):
        calibration.probability(SCORE[:, :2], age=np.arange(60.0))
    with pytest.raises(InputError, match="pass age.*calibrated"):
        calibration.probability(SCORE)


def test_what_is_not_judged_is_left_out_and_counted():
    score, relevant = drawn()
    hidden = np.where(np.random.default_rng(1).random(relevant.shape) < 0.3, -1, relevant)
    with pytest.warns(ScoresWarning, match=rf"{(hidden < 0).sum()} of 2,000 hits.*not judged"):
        calibration = calibrate_scores(score, hidden)
    assert (calibration.queries.mated == -1).any()
    rule = calibration.guarantee(recall=0.7)
    assert rule.n_tested == int((rule.scores.queries.relevant[:, 0] >= 0).sum())


def test_scores_that_point_the_wrong_way_are_told():
    score, relevant = drawn(k=1)
    with pytest.warns(ScoresWarning, match="relevant hits.*below others"):
        calibrate_scores(-score, relevant)


def test_too_few_errors_are_told():
    score, relevant = drawn(k=1)
    keep = relevant[:, 0] | (np.cumsum(~relevant[:, 0]) <= 4)
    with pytest.warns(FewQueriesWarning, match="at least 5.*both"):
        calibrate_scores(score[keep], relevant[keep])
    with pytest.warns(FewQueriesWarning, match="only 0 .* an irrelevant .*400 have a relevant"):
        calibrate_scores(score, np.ones(400))
    with pytest.warns(FewQueriesWarning, match="only 0 .* a relevant .*400 have an irrelevant"):
        calibrate_scores(score, np.zeros(400))


def test_ragged_lists_end_with_infinity():
    score, relevant = drawn()
    ends = np.arange(5) >= np.random.default_rng(0).integers(1, 6, len(score))[:, None]
    ragged = np.where(ends, -np.inf, score)
    calibration = calibrate_scores(ragged, relevant)
    p = calibration.probability(ragged)
    assert not p[ends].any()
    assert checked_scores(ragged, ("similarity",))[1].sum() == (~ends).sum()


def of_scores(*sizes):
    """Sets of features of scores, of which all are tried."""
    sets = score_sets(*sizes)
    return sets, tuple(sets)


def test_a_query_counts_once_however_many_hits_it_has():
    """Half of the queries have one hit, of which .9 are relevant, the others nine with .1."""
    g = np.random.default_rng(0)
    n, k = 2_000, 9
    long = np.arange(n) % 2 == 1
    exists = long[:, None] | (np.arange(k) == 0)
    judged = (g.random((n, k)) < np.where(long, 0.1, 0.9)[:, None]).astype(np.int8)
    features = np.zeros((n, k, 5))
    features[..., 0] = g.normal(size=(n, k))  # says nothing
    pairs = PairFeatures(features, exists)
    model = fit_probability(pairs, judged, *of_scores(1, 5, k))
    assert model(model.logit(pairs))[exists].mean() == pytest.approx(0.5, abs=0.03)


def test_no_value_counts_against_a_match():
    """A second scorer that points the wrong way is left out, not turned round."""
    g = np.random.default_rng(0)
    right = g.random((600, 1)) < 0.5
    one, other = g.normal(size=(600, 1)) + right, g.normal(size=(600, 1)) - 2 * right
    calibration = calibrate_scores(np.stack([one, other], -1), right, kind=("score", "score"))
    assert calibration.model.first.score.weights[[0, 4]].min() >= 0


def test_queries_of_which_nobody_knows_are_in_no_rate_of_identification():
    score, relevant = drawn()
    judged = np.where(np.arange(400)[:, None] % 2 == 0, relevant, -1)
    with pytest.warns(ScoresWarning):
        calibration = calibrate_scores(score, judged)
    rule = calibration.guarantee(fpir=0.2)
    mated = rule.scores.queries.mated
    assert rule.n_tested == int((mated == 0).sum()) < int((mated != 1).sum())


def test_an_order_that_rounding_broke_is_an_order():
    """An engine sorts by more digits than it returns, or rounds each score for itself."""
    swapped = SCORE.copy()
    swapped[0, 1] = swapped[0, 0] + 5e-7 * abs(swapped[0, 0])
    calibrate_scores(swapped, RELEVANT)
    swapped[0, 1] = swapped[0, 0] + 5e-6 * abs(swapped[0, 0])
    with pytest.raises(InputError, match="1 of 60.*not fall"):
        calibrate_scores(swapped, RELEVANT)


@pytest.mark.parametrize("kind", [list, pd.DataFrame, torch.tensor, "object", "column"])
def test_scores_of_any_container_are_the_same(kind):
    ways = {"object": lambda x: x.astype(object), "column": lambda x: pd.Series(list(x))}
    given = SCORE.tolist() if kind is list else ways.get(kind, kind)(SCORE)
    one, other = calibrate_scores(SCORE, RELEVANT), calibrate_scores(given, RELEVANT)
    np.testing.assert_array_equal(one.queries.probability, other.queries.probability)


def test_an_estimated_number_of_queries_has_two_digits():
    calibration = calibrate_scores(*drawn(200), cross_fit=0)
    exact = calibration.queries_needed(0.62).more_queries
    assert exact > 100
    assert exact % 10
    with pytest.raises(InputError, match=r"to [1-9](,?[0-9])(,?0)+ more queries") as error:
        calibration.guarantee(precision=0.62)
    said = int(re.search(r"to ([\d,]+) more", str(error.value))[1].replace(",", ""))
    assert exact <= said <= 1.1 * exact


def test_few_queries_are_held_by_a_narrow_prior_and_many_by_a_wide_one():
    """Separable scores: the narrow prior lets a standardised weight be a few units, no more."""
    g = np.random.default_rng(0)
    for n, few in ((60, True), (600, False)):
        right = np.arange(n) % 2 == 0
        x = np.where(right, 1.0, -1.0) + 0.01 * g.normal(size=n)
        features = np.zeros((n, 1, 5))
        features[:, 0, 0] = x
        pairs = PairFeatures(features, np.ones((n, 1), bool))
        model = fit_probability(pairs, right[:, None].astype(np.int8), *of_scores(1, 5, 1))
        weight = model.score.weights[0] * x.std()
        assert (weight < 8) == few, n
