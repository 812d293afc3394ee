"""Match probability on pairs whose true probability is known, and how it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration.probability import _logistic_score, _match_probability
from laplace_metric.calibration.probability._calibrators import fit_calibrator
from laplace_metric.calibration.probability._features import FEATURE_SETS, FEATURES, PairFeatures
from laplace_metric.calibration.probability._logistic_score import FLATTEST, WIDE, WIDTH, fit_score
from laplace_metric.calibration.probability._match_probability import FOLDS, fit_match_probability
from laplace_metric.datasets import load
from laplace_metric.errors import FewQueriesWarning, InputError
from laplace_metric.evaluation import auroc, expected_calibration_error
from tests.calibration.conftest import calibrated

Q, K = 300, 4


def simulated(slopes=(-4.0, -1.5, -0.5), seed: int = 0, n: int = Q, bend: bool = False):
    """Features of [n, K] pairs, their true probabilities and labels drawn from them."""
    g = np.random.default_rng(seed)
    values = np.zeros((n, K, len(FEATURES)))  # labels say nothing
    values[..., :3] = 0.5 * g.normal(size=(n, K, 3))
    values[..., 0] = np.abs(values[..., 0] + 1.5)
    values[..., 2] = np.log(np.arange(1, K + 1))
    eta = values[..., :3] @ np.array(slopes) + 6.5
    true = np.where(eta < 0, 0.15, 0.8) if bend else 1 / (1 + np.exp(-eta))
    match = g.random((n, K)) < true
    return PairFeatures(values, np.ones((n, K), dtype=bool)), true, match


def test_it_is_calibrated_and_near_the_truth():
    features, _, match = simulated()
    matcher = fit_match_probability(features, match)
    assert matcher.feature_set == "all"
    new, true, labels = simulated(seed=1, n=4000)
    p = matcher(matcher.logit(new))
    assert float(np.abs(p - true).mean()) < 0.03
    assert expected_calibration_error(p.flatten(), labels.flatten(), 10).ece < 0.03
    score = matcher.score.weights
    np.testing.assert_allclose(score, [-4.0, -1.5, -0.5, 0, 0, 0, 0, 0, 0], atol=0.6)


def test_the_chosen_one_has_the_smallest_loss_and_it_is_honest():
    features, true, match = simulated(bend=True)
    matcher = fit_match_probability(features, match)
    assert matcher.calibrator.kind == "isotonic", "the truth is a step"
    assert set(matcher.losses) == {"all, logistic", "all, beta", "all, isotonic"}
    best, error = matcher.losses["all, isotonic"]
    assert best == min(loss for loss, _ in matcher.losses.values())
    entropy = float(-(true * np.log(true) + (1 - true) * np.log(1 - true)).mean())
    assert entropy - 3 * error < best < matcher.losses["all, logistic"][0]
    new, _, labels = simulated(seed=1, n=2000, bend=True)
    p = matcher(matcher.logit(new))
    fresh = float(-np.log(np.where(labels, p, 1 - p)).mean())
    assert abs(fresh - best) < 4 * error


def test_evidence_that_says_nothing_has_no_weight():
    features, _, match = simulated(slopes=(-4.0, 0.0, -0.5))
    features.values[..., 1] = -3.0
    matcher = fit_match_probability(features, match)
    assert matcher.score.weights[[1, *range(3, len(FEATURES))]].tolist() == [0] * 7


def fit(x, y, groups, name):
    """Score and calibrator of few pairs, with all features."""
    weight = 1 / np.bincount(groups)[groups]
    score = fit_score(x, y, weight, FEATURE_SETS["all"])
    return score, fit_calibrator(name, score(x), y, weight)


def test_the_log_loss_is_that_of_the_folds():
    features, _, match = simulated(n=50)
    matcher = fit_match_probability(features, match)
    x, y = features.values.reshape(-1, len(FEATURES)), match.flatten() * 1.0
    groups = np.repeat(np.arange(50), K)
    loss = np.empty(len(y))
    for train, test in GroupKFold(FOLDS).split(x, y, groups):
        score, fitted = fit(x[train], y[train], groups[train], "beta")
        p = fitted(score(x[test]))
        loss[test] = -(y[test] * np.log(p) + (1 - y[test]) * np.log(1 - p))
    mean_loss, error = matcher.losses["all, beta"]
    assert mean_loss == pytest.approx(loss.mean())
    assert error == pytest.approx(loss.reshape(50, K).mean(1).std(ddof=1) / 50**0.5)


def test_pairs_of_one_query_stay_together(monkeypatch):
    features, _, match = simulated(n=40)
    features.values[..., 1] = np.arange(40.0)[:, None]
    exists = features.exists.copy()
    exists[3:9, 2:] = False
    training_queries = []
    fitted = _logistic_score.fitted_score

    def spy(x, y, weight, prior, width):
        training_queries.append(x[:, 1])
        return fitted(x, y, weight, prior, width)

    monkeypatch.setattr(_match_probability, "fitted_score", spy)
    fit_match_probability(PairFeatures(features.values, exists), match)
    sizes = dict(zip(range(40), exists.sum(1).tolist(), strict=True))
    assert len(training_queries) == FOLDS + 1
    for queries in training_queries:
        for query, count in zip(*np.unique(queries, return_counts=True), strict=True):
            assert count == sizes[int(query)], "all of its pairs, or none"
    assert len(training_queries[-1]) == int(exists.sum())
    held_out = [set(range(40)) - {int(q) for q in queries} for queries in training_queries[:FOLDS]]
    assert sorted(q for fold in held_out for q in fold) == list(range(40))


def test_nobody_is_no_match():
    features, _, match = simulated()
    for chosen in ("distance", "all"):
        matcher = fit_match_probability(features, match)
        exists = features.exists.copy()
        exists[0, 1:] = False
        logit = matcher.logit(PairFeatures(features.values, exists))
        p = matcher(logit)
        assert logit[0, 1:].tolist() == [-np.inf] * 3
        assert p[0].tolist()[1:] == [0, 0, 0], chosen
        assert float(p[0, 0]) > 0


@pytest.mark.parametrize("name", ["logistic", "beta", "isotonic"])
def test_every_map_gives_nobody_no_chance(name):
    features, _, match = simulated()
    x, y = features.values.reshape(-1, len(FEATURES)), match.flatten() * 1.0
    fitted = fit(x, y, np.repeat(np.arange(Q), K), name)
    matcher = _match_probability.MatchProbability(f"all, {name}", *fitted, {})
    assert matcher(np.array([-np.inf, 0.0]))[0] == 0


def test_labels_that_vote_are_worth_more_than_the_distance():
    features, _, match = simulated(slopes=(-1.0, 0.0, 0.0))
    noise = np.random.default_rng(5).random(match.shape)
    features.values[..., 3] = 0.7 * match + 0.3 * noise
    voted = fit_match_probability(features, match)
    features.values[..., 3] = 0
    alone = fit_match_probability(features, match)
    assert voted.losses["all, logistic"][0] < 0.5 * alone.losses["all, logistic"][0]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("exceptions", [0, 1, 4])
def test_where_nearly_all_match_or_none_it_still_falls_with_the_distance(value, exceptions):
    features, _, match = simulated(n=40)
    match = np.full_like(match, value)
    match[:exceptions] = not value
    with pytest.warns(FewQueriesWarning, match=f"^{exceptions} of.*40 queries.*at least 5"):
        matcher = fit_match_probability(features, match)
    assert list(matcher.losses) == ["distance, logistic"]
    p = matcher(matcher.logit(features))[:, 0]  # one rank, so that the distance alone counts
    assert np.array_equal(p.argsort(), (-features.values[:, 0, 0]).argsort())
    share = (40 - exceptions if value else exceptions) / 40
    assert float(p.mean()) == pytest.approx(share, abs=0.06)
    assert float(matcher.score.weights[0]) <= FLATTEST / features.values[..., 0].std() * 0.99


def test_five_of_either_kind_are_enough(recwarn):
    features, _, match = simulated(n=40)
    match = np.ones_like(match)
    match[:5] = False
    assert len(fit_match_probability(features, match).losses) == 2, "no step function of so few"
    assert not [w for w in recwarn if w.category is FewQueriesWarning]


@pytest.mark.parametrize(("kinds", "width"), [(49, WIDTH), (50, WIDE)])
def test_fewer_than_fifty_of_a_kind_have_the_narrow_prior(kinds, width):
    features, _, match = simulated(n=300)
    match = np.ones_like(match)
    match[:kinds] = False
    features.values[:kinds, :, 0] += 5.0  # separable: the prior alone holds the weights
    found = fit_match_probability(features, match).score.weights[0]
    x, y = features.values.reshape(-1, len(FEATURES)), match.ravel().astype(float)
    weight = np.full(len(x), 1 / K)
    wanted = {w: fit_score(x, y, weight, FEATURE_SETS["all"], w).weights[0] for w in (WIDTH, WIDE)}
    assert found == pytest.approx(wanted[width], rel=1e-9)
    assert abs(wanted[WIDE]) > 1.2 * abs(wanted[WIDTH])


@pytest.mark.parametrize(("kinds", "tried"), [(49, 2), (50, 3)])
def test_a_step_function_takes_fifty_of_either_kind(kinds, tried):
    features, _, match = simulated(n=120)
    match = np.ones_like(match)
    match[:kinds] = False
    assert len(fit_match_probability(features, match).losses) == tried


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.FewQueriesWarning")
@pytest.mark.parametrize("n", [40, 100])
def test_few_queries_of_real_digits_rank_as_well_as_the_distance(n):
    """Where one nearest item in twenty-five is wrong, few queries show no error at all."""
    gallery, pool = (load("digits", split) for split in ("train", "test"))
    x, y = gallery.pixels(slice(None)).flatten(1), gallery.labels
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    asked = index.labelled_hits(pool.pixels(slice(None)).flatten(1), pool.labels, 20)
    gain = []
    for seed in range(2):
        g = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(asked), generator=g).numpy()
        test = asked.take(order[n:])
        calibration = calibrated(asked.take(order[:n]), 10, len(index), g)
        p, right = calibration.assess(test.hits).match_probability[:, 0], test.match[:, 0]
        far = test.hits.distance[:, 0]
        gain.append(auroc(-p[right], -p[~right]) - auroc(far[right], far[~right]))
    assert float(np.mean(gain)) >= -1e-12


def test_a_fold_without_a_match_is_judged_by_a_constant():
    features, _, match = simulated(n=40)
    match = np.zeros_like(match)
    match[[0, 5, 10, 15, 20]] = True
    losses = fit_match_probability(features, match).losses
    assert all(np.isfinite(loss) for loss, _ in losses.values())


def test_it_refuses():
    features, _, match = simulated(n=9)
    with pytest.raises(InputError, match="9 queries.*at least 10"):
        fit_match_probability(features, match)


@pytest.mark.parametrize("rounding", [1e-16, 1e-9])
def test_a_constant_feature_has_no_weight(rounding):
    """Its spread is that of rounding: divided by it, a new value would decide everything."""
    g = np.random.default_rng(0)
    values = g.random((120, len(FEATURES)))
    column = FEATURES.index("share")
    values[:, column] = 0.3 * (1 + rounding * g.standard_normal(120))
    match = (values[:, FEATURES.index("distance")] < g.random(120)).astype(float)
    score = _logistic_score.fit_score(values, match, np.ones(120), list(range(len(FEATURES))))
    assert score.weights[column] == 0
    assert abs(score.weights).max() < 100
    assert abs(score.offset) < 100


@pytest.mark.parametrize("name", ["logistic", "beta", "isotonic"])
def test_a_score_of_nan_is_no_probability_of_zero(name):
    features, _, match = simulated()
    matcher = fit_match_probability(features, match)
    knots = fit_calibrator(name, matcher.logit(features).ravel(), match.ravel() * 1.0,
                           np.ones(match.size))  # fmt: skip
    p = replace(matcher, calibrator=knots)(np.array([[np.nan, -np.inf, 0.0, np.inf]]))[0]
    assert np.isnan(p[0])
    assert p[1] == 0
    assert 0 < p[2] <= p[3]
