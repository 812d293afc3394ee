"""The score against an unconstrained optimum, and what the caps promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from scipy.stats import norm

from laplace_metric.calibration.probability._features import FEATURE_SETS, FEATURES, PairFeatures
from laplace_metric.calibration.probability._logistic_score import FLOOR, SLOPE, fit_score

POSTERIOR, LABELS = [0, 1, 2], [0, 2, 3, 4, 5]


def pairs(slopes, n: int = 2000, seed: int = 0):
    """Features [n, F] with log odds linear in them; those of labels say nothing by default."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 3)) * [0.3, 0.5, 0.8] + [1.2, -2.0, 1.5]
    values[:, [0, 2]] = np.abs(values[:, [0, 2]])
    values = np.concatenate([values, rng.random((n, len(FEATURES) - 3))], 1)
    slopes = np.asarray([*slopes, *[0] * len(FEATURES)][: len(FEATURES)], dtype=float)
    eta = (values - values.mean(0)) @ slopes
    return values, (rng.random(n) < expit(eta)).astype(float)


def optimum(values, match, columns):
    """Weights and offset by scipy: the posterior mode of the module's header, w and c in full."""
    x = values[:, columns]
    scale, mean = x.std(0), x.mean(0)
    z = (x - mean) / scale
    prior = norm([SLOPE if column == 0 else 0.0 for column in columns], 1.0)

    def loss(w):
        sign, jeffreys = np.where(match == 1, 1, -1), log_expit([w[-1], -w[-1]]).sum() / 2
        likelihood = log_expit(sign * (z @ w[:-1] + w[-1])).sum()
        return -likelihood - prior.logpdf(w[:-1]).sum() - jeffreys

    best = minimize(loss, np.zeros(len(columns) + 1), method="BFGS", options={"gtol": 1e-6}).x
    weights = np.zeros(len(FEATURES))
    weights[columns] = best[:-1] / scale
    return weights, best[-1] - weights[columns] @ mean


@pytest.mark.parametrize("columns", [FEATURE_SETS["distance"], POSTERIOR])
def test_without_a_positive_weight_it_is_logistic_regression(columns):
    values, match = pairs([-3, -1.5, -1])
    score = fit_score(values, match, np.ones(len(match)), columns)
    weights, offset = optimum(values, match, columns)
    assert (weights <= 0).all()
    np.testing.assert_allclose(score.weights, weights, atol=5e-3)
    assert score.offset == pytest.approx(offset, abs=2e-2)
    assert np.isinf(score.cap).all()
    np.testing.assert_allclose(score(values), values @ weights + offset, atol=2e-2)


def test_rank_may_count_for_a_match_without_end():
    values, match = pairs([-3, -1, 2])
    score = fit_score(values, match, np.ones(len(match)), POSTERIOR)
    assert float(score.weights[2]) > 1
    assert np.isinf(score.cap).all()


@pytest.mark.parametrize("column", [0, 1])
def test_evidence_for_a_match_counts_up_to_its_median(column):
    slopes = [-2.0, -1.0, -1.0]
    slopes[column] = 2.0
    values, match = pairs(slopes)
    score = fit_score(values, match, np.ones(len(match)), POSTERIOR)
    middle = np.median(values, 0)
    assert float(score.weights[column]) > 0
    assert float(score.cap[column]) == middle[column]
    at = np.tile(middle, (4, 1))
    at[:, column] += np.array([-0.5, 0.0, 1.0, 100.0])
    scores = score(at)
    assert float(scores[0]) < float(scores[1])
    assert (scores[1:] == scores[1]).all()
    weights, offset = optimum(np.minimum(values, score.cap), match, POSTERIOR)
    np.testing.assert_allclose(score.weights, weights, atol=2e-2)
    assert score.offset == pytest.approx(offset, abs=5e-2)


def test_a_vote_counts_without_end():
    values, match = pairs([-3, -1, -1, 2, 2, -2])
    score = fit_score(values, match, np.ones(len(match)), LABELS)
    weights, offset = optimum(values, match, LABELS)
    assert bool((score.weights[3:5] > 1).all())
    np.testing.assert_allclose(score.weights, weights, atol=5e-3)
    assert score.offset == pytest.approx(offset, abs=2e-2)
    assert score.low[3:7].tolist() == [0, 0, 0, 0]
    assert np.isinf(score.cap).all()


def test_evidence_against_a_match_counts_without_end():
    values, match = pairs([-3, -1, -1])
    score = fit_score(values, match, np.ones(len(match)), POSTERIOR)
    far = np.tile(np.median(values, 0), (3, 1))
    far[:, 0] = np.array([1.0, 10.0, 1000.0])
    scores = score(far)
    assert bool((np.diff(scores) < -8 * float(-score.weights[0])).all())


@pytest.mark.parametrize("seed", range(8))
def test_refitting_ends_whatever_the_labels(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(30, len(FEATURES))) * 10.0 ** rng.integers(-6, 6, len(FEATURES))
    values[:, rng.integers(0, 3)] = 1.0
    match = (rng.random(30) < 0.5).astype(float)
    match[:2] = 0, 1
    score = fit_score(values, match, np.ones(len(match)), POSTERIOR)
    capped = ~np.isinf(score.cap)
    assert not bool(capped[2])
    assert bool(np.isfinite(score(values)).all())
    assert bool((score.weights[:2][~capped[:2]] <= 0).all())


def test_constant_evidence_says_nothing():
    values, match = pairs([-3, 0, -1])
    values[:, 1] = -4.0
    score = fit_score(values, match, np.ones(len(match)), POSTERIOR)
    assert float(score.weights[1]) == pytest.approx(0, abs=1e-9)
    assert FEATURE_SETS["distance"] == [0, 2]
    assert FEATURE_SETS["all"] == list(range(len(FEATURES)))
    assert FEATURES[:3] == ("distance", "spread", "rank")
    assert FEATURES[3:] == ("share", "weighted", "ratio", "ambiguity", "epistemic", "class_model")


def test_a_certain_posterior_gives_a_finite_score():
    values, match = pairs([-3, -1, -1])
    values[::10, 1] = -np.inf
    score = fit_score(values, match, np.ones(len(match)), POSTERIOR)
    floor = np.median(values, 0)[1] + np.log(FLOOR)
    assert float(score.low[1]) == pytest.approx(floor)
    assert score.low[[0, 2]].tolist() == [0, 0]
    both = values[:2].copy()
    both[:, 1] = np.array([-np.inf, floor])
    both[1, [0, *range(2, len(FEATURES))]] = both[0, [0, *range(2, len(FEATURES))]]
    assert float(score(both)[0]) == float(score(both)[1])
    values[:, 1] = -np.inf
    assert bool(np.isfinite(fit_score(values, match, np.ones(len(match)), POSTERIOR)(values)).all())


def test_evidence_is_what_the_names_say():
    from laplace_metric.calibration._hits import SearchHits
    from laplace_metric.calibration.labels._votes import LabelVotes

    gaps, none = np.array([[1.9, np.inf]]), np.array([[3, -1]])
    hits = SearchHits(
        np.array([[5, -1]]), gaps, np.array([[0.2, np.inf]]), np.array([0.3]), np.array([-0.7])
    )
    features = PairFeatures.of(hits)
    assert features.exists.tolist() == [[True, False]]
    expected = [1.9, np.log(0.2), 0.0]
    assert features.values[0, 0].tolist() == pytest.approx([*expected, 0, 0, 0, 0, -0.7, 0])
    assert features.values[0, 1].tolist() == [0.0] * len(FEATURES)
    voted = PairFeatures.of(replace(hits, votes=LabelVotes.of(gaps, none)))
    assert voted.values[0, 0, 3:7].tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0])
