"""Calibrations on exchangeable queries: false alarms, coverage, storage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration import _calibrated as storage
from laplace_metric.calibration import _conformal, guarantee
from laplace_metric.calibration._calibration_file import calibration_of, calibration_part
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration.guarantees import _queries_needed
from laplace_metric.calibration.probability import _match_probability
from laplace_metric.calibration.probability._features import (
    TRUSTED,
    PairFeatures,
    epistemic_weight,
    query_statistics,
    statistic_weights,
)
from laplace_metric.calibration.probability._held_out import on_answering_scale
from laplace_metric.calibration.probability._match_probability import fit_match_probability
from laplace_metric.errors import FewQueriesWarning, FileFormatError, InputError, UnknownNameError
from laplace_metric.evaluation import expected_calibration_error
from tests.calibration.arrays import queries_needed
from tests.calibration.conftest import calibrated

CLASSES, KNOWN, K, RUNS, TAUGHT = 20, 15, 3, 40, 240


@pytest.fixture(scope="module")
def labelled() -> LabelledHits:
    """800 queries of 20 Gaussian classes, three quarters of which the index has."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 8, generator=g)

    def draw(n: int, classes: int):
        y = torch.randint(0, classes, (n,), generator=g)
        return centres[y] + 0.5 * torch.randn(n, 8, generator=g), y

    embedder = LaplaceEmbedder.from_embeddings(
        *draw(300, KNOWN), prior_precision=20.0, distance="arccos"
    )
    index = embedder.index(*draw(150, KNOWN), progress=False)
    return index.labelled_hits(*draw(800, CLASSES), k=40)


def splits(labelled: LabelledHits):
    """A calibration and the queries left over, from orders of the same queries."""
    for seed in range(RUNS):
        g = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(labelled), generator=g).numpy()
        taught, left = labelled.take(order[:TAUGHT]), labelled.take(order[TAUGHT:])
        yield calibrated(taught, K, 150, g), left


def within(rates: list[float], low: float, high: float) -> None:
    """The mean lies between the bounds, give or take three standard errors."""
    rate = np.array(rates)
    slack = 3 * float(rate.std()) / len(rates) ** 0.5
    assert low - slack <= float(rate.mean()) <= high + slack


def test_known_queries_are_called_unknown_at_most_as_often_as_promised(labelled, quick):
    alpha, alarms, detected, sizes = 0.1, [], [], []
    for fitted, left in splits(labelled):
        unknown = fitted.assess(left.hits).p_value <= alpha
        alarms.append(float(unknown[left.known].mean()))
        detected.append(float(unknown[~left.known].mean()))
        sizes.append(len(fitted.statistics))
    within(alarms, alpha - 1 / (min(sizes) + 1) - 0.02, alpha)
    assert sum(detected) > 3 * sum(alarms)


@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_sets_hold_a_match_as_often_as_promised(alpha, labelled, quick):
    covered, sizes = [], []
    for fitted, left in splits(labelled):
        members = fitted.members(fitted.matcher.logit(PairFeatures.of(left.hits)), alpha)
        hit = (members & left.match).any(1)[left.known]
        covered.append(float(hit.mean()))
        sizes.append(int(fitted.known.sum()))
    within(covered, 1 - alpha, 1 - alpha + 1 / (min(sizes) + 1))


def first_matches(logit, match):
    """log P(the first match is this one), by the definition, one pair after the other."""
    logs = []
    for scores, matches in zip(logit.tolist(), match.tolist(), strict=True):
        missed = 1.0
        for score, right in zip(scores, matches, strict=True):
            p = 1 / (1 + math.exp(-score))
            if right:
                logs.append(math.log(missed * p))
                break
            missed *= 1 - p
        else:
            logs.append(-math.inf)
    return logs


def test_a_calibration_keeps_what_the_second_half_says(labelled):
    fitted = calibrated(labelled.take(np.arange(400)), K, 150, torch.Generator().manual_seed(0))
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0)).numpy()
    first, second = labelled.take(order[:200]), labelled.take(order[200:])
    logit = fitted.matcher.logit(PairFeatures.of(second.hits))
    assert np.array_equal(fitted.probability, fitted.matcher(logit[:, :K]))
    assert np.array_equal(fitted.match, second.match[:, :K])
    assert np.array_equal(fitted.known, second.known)
    assert fitted.first_match.tolist() == pytest.approx(first_matches(logit, second.match))
    halves = [query_statistics(half.hits)[half.known] for half in (first, second)]
    assert np.array_equal(fitted.statistics, np.concatenate(halves))
    assert fitted.smallest_p_value == 1 / (len(fitted.statistics) + 1)
    assessment = fitted.assess(second.hits)
    assert np.array_equal(assessment.logit, logit)
    assert np.array_equal(fitted.label_probability, assessment.label_probability)
    answers = np.take_along_axis(second.match, assessment.carrier[:, None], 1)[:, 0]
    assert np.array_equal(fitted.right, answers)
    label_quality = fitted.quality(10, of="label")
    gap = np.square(fitted.label_probability - answers)
    assert label_quality.brier.estimate == pytest.approx(float(gap.mean()))
    wanted = guarantee(fitted.label_probability, fitted.right, recall=0.5)
    found = fitted.guarantee(recall=0.5, of="label", alpha=None)
    assert found == replace(
        wanted, guarantee=replace(wanted.guarantee, of="label"), calibration=fitted.identity
    )
    assert fitted.guarantee(recall=0.5, alpha=None) == found
    with pytest.raises(UnknownNameError, match="of"):
        fitted.quality(of="luck")
    assert (fitted.k, fitted.depth, fitted.n_items) == (K, 40, 150)
    p = fitted.probability[:, 0]
    wanted = guarantee(p, fitted.match[:, 0], recall=0.5)
    expected = replace(wanted, calibration=fitted.identity)
    assert fitted.guarantee(recall=0.5, of="match", alpha=None) == expected
    ours = fitted.quality(10, of="match")
    assert ours.reliability.ece == expected_calibration_error(p, fitted.match[:, 0]).ece < 0.15
    gap = np.square(p - fitted.match[:, 0])
    assert ours.brier.estimate == pytest.approx(float(gap.mean()))
    assert ours.brier.low <= ours.brier.estimate <= ours.brier.high


def test_another_seed_is_another_split(labelled):
    one, two, three = (
        calibrated(labelled, K, 150, torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    )
    assert np.array_equal(one.probability, two.probability)
    assert not np.array_equal(one.probability, three.probability)


def test_sets_that_cannot_be_promised(labelled, quick):
    fitted = calibrated(labelled, K, 150, torch.Generator().manual_seed(0))
    n = int(fitted.known.sum())
    logit = fitted.matcher.logit(PairFeatures.of(labelled.hits))
    with pytest.raises(InputError, match=rf"alpha=0.001.*999 .* of {n}, 0.0%"):
        fitted.members(logit, 0.001)
    near = replace(labelled, match=labelled.match.copy())
    near.match[::3] = False
    fitted = calibrated(near, K, 150, torch.Generator().manual_seed(0))
    missed = float((fitted.first_match[fitted.known] == -np.inf).mean())
    assert missed > 0.2
    with pytest.raises(InputError, match=f"alpha=0.2 .*40 nearest items.*{missed:.1%} have none"):
        fitted.members(logit, 0.2)
    assert bool(fitted.members(logit, 0.9).any())


def test_too_few_queries_that_have_a_match(labelled):
    known = np.flatnonzero(labelled.known)
    g = torch.Generator()
    with pytest.raises(InputError, match="19 queries.*at least 20"):
        calibrated(labelled.take(known[:19]), K, 150, g.manual_seed(0))
    few = np.append(known[:9], np.flatnonzero(~labelled.known)[:21])
    with pytest.raises(InputError, match="half.*a match.*at least 5"):
        calibrated(labelled.take(few), K, 150, g.manual_seed(0))
    calibrated(labelled.take(known[:20]), K, 150, g.manual_seed(0))


def test_strange_are_a_far_neighbour_an_undetermined_query_and_labels_that_disagree(labelled):
    hits: SearchHits = labelled.hits.take(np.arange(2))
    wanted = np.stack([hits.distance[:, 0], hits.epistemic, hits.votes.ambiguity], 1)
    assert np.array_equal(query_statistics(hits), wanted)


def least_common(known, new, weights=(1, 1, 1)):
    """By its definition: ranks among all n + 1, the least of rank / weight, ties by the sum."""
    everything = [*known, new]

    def key(i):
        ranks = [
            sum(row[j] >= everything[i][j] for k, row in enumerate(everything) if k != i)
            for j in range(len(new))
        ]
        shares = [Fraction(rank + 1, weight) for rank, weight in zip(ranks, weights, strict=True)]
        return min(shares), sum(ranks)

    keys = [key(i) for i in range(len(everything))]
    return sum(k <= keys[-1] for k in keys) / len(everything)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_p_values_of_the_least_common_statistic(n):
    g = np.random.default_rng(n)
    known, new = g.integers(0, 9, (n, 3)) * 1.0, g.integers(-1, 11, (50, 3)) * 1.0
    ours = _conformal.least_common_p_values(known, new)
    assert ours.tolist() == [least_common(known.tolist(), row) for row in new.tolist()]


@pytest.mark.parametrize("weights", [(1, 4, 1), (2, 3, 1), (5, 1, 1)])
def test_p_values_of_weighted_statistics(weights):
    g = np.random.default_rng(0)
    known, new = g.integers(0, 30, (25, 3)) * 1.0, g.integers(-1, 33, (50, 3)) * 1.0
    ours = _conformal.least_common_p_values(known, new, weights)
    assert ours.tolist() == [least_common(known.tolist(), row, weights) for row in new.tolist()]
    assert (ours != _conformal.least_common_p_values(known, new)).any()
    own = _conformal.own_p_values(known, weights)
    assert own.tolist() == [
        least_common(np.delete(known, i, 0).tolist(), row, weights)
        for i, row in enumerate(known.tolist())
    ]


@pytest.mark.parametrize(("median", "trusted"), [(-0.2, 1.0), (0.5, 0.5), (1.2, 0.0)])
def test_the_weight_that_the_known_choose_keeps_the_level(median, trusted):
    """At a median of .5, every other set of known queries chooses the other weight."""
    g, rare, weights = np.random.default_rng(1), [], []
    for _ in range(1_000):
        z = g.normal(size=(44, 3))
        z[:, 1] += median + 0.5 * z[:, 0]
        weights.append(epistemic_weight(z[:40]))
        counts = statistic_weights(weights[-1])
        rare.append(_conformal.least_common_p_values(z[:40], z[40:], counts) <= 0.1)
    assert np.mean(rare) <= 0.1 + 3 * (0.1 * 0.9 / np.size(rare)) ** 0.5
    assert np.mean(np.array(weights) == TRUSTED) == pytest.approx(trusted, abs=0.05)


def test_the_epistemic_number_is_trusted_where_the_known_are_like_the_fit(labelled):
    """Known queries of the fit's classes; the same far from it; and a fit of more classes."""
    far = replace(labelled, hits=replace(labelled.hits, epistemic=labelled.hits.epistemic + 3))
    like, unlike, part = (
        calibrated(hits, K, 150, torch.Generator().manual_seed(0), covers_fit=covers)
        for hits, covers in ((labelled, True), (far, True), (labelled, False))
    )
    assert (like.epistemic_weight, unlike.epistemic_weight, part.epistemic_weight) == (
        TRUSTED,
        1,
        1,
    )
    saved = calibration_part(like)
    read = calibration_of(json.loads(json.dumps(saved.content)), saved.arrays)
    assert read.epistemic_weight == TRUSTED
    assert read.identity == like.identity
    np.testing.assert_array_equal(
        read.assess(labelled.hits).p_value, like.assess(labelled.hits).p_value
    )


@pytest.mark.parametrize("cells", [1, 500])
def test_blocks_of_p_values(cells, monkeypatch):
    known, new = np.random.default_rng(0).random((2, 30, 3))
    whole = _conformal.least_common_p_values(known, new)
    monkeypatch.setattr(_conformal, "BLOCK_CELLS", cells)
    assert np.array_equal(_conformal.least_common_p_values(known, new), whole)


def test_noise_is_unknown_from_twenty_held_out_queries_on(labelled):
    known = np.flatnonzero(labelled.known)
    for n in (20, 60, 120, 240):
        fitted = calibrated(labelled.take(known[:n]), K, 150, torch.Generator().manual_seed(0))
        hits = labelled.hits.take(np.arange(50))
        votes = replace(hits.votes, ambiguity=hits.votes.ambiguity + 3)
        noise = replace(
            hits, distance=hits.distance + 9, epistemic=hits.epistemic + 99, votes=votes
        )
        p = fitted.assess(noise).p_value
        assert float(p.max()) == 1 / (n + 1) <= 0.05


@pytest.mark.parametrize("n_matching", [0, 1, 99, 100])
def test_an_embedder_that_is_nearly_always_right_or_wrong(n_matching, labelled):
    """A prior's slope, shrunk; thresholds and conformal parts as ever."""
    queries = labelled.take(np.arange(100))
    match = np.arange(100)[:, None] + np.zeros(40) < n_matching
    zeros = np.zeros(100, dtype=np.int64)
    given = replace(queries, match=match, codes=zeros, known=zeros == 0)
    with pytest.warns(FewQueriesWarning, match="50 queries.*fit"):
        fitted = calibrated(given, K, 150, torch.Generator().manual_seed(0))
    p = fitted.probability[:, 0]
    assert fitted.matcher.chosen == "distance, logistic"
    assert len(np.unique(p)) == len(p), "never a constant"
    assert float(p.mean()) == pytest.approx(float(n_matching > 50), abs=0.05)
    assert len(fitted.assess(queries.hits).p_value) == 100
    if n_matching >= 99:
        assert fitted.guarantee(precision=0.8, of="match", alpha=None).coverage > 0.9
        tested = torch.randperm(100, generator=torch.Generator().manual_seed(0)).numpy()[50:]
        logit = fitted.assess(given.hits.take(tested)).logit
        assert float(fitted.members(logit, 0.1).any(1).mean()) >= 0.9
    else:
        with pytest.raises(InputError, match="cannot be guaranteed"):
            fitted.guarantee(precision=0.8, of="match")


def test_a_calibration_survives_json_and_tensors(labelled):
    fitted = calibrated(labelled, K, 150, torch.Generator().manual_seed(0))
    part = calibration_part(fitted)
    again = calibration_of(json.loads(json.dumps(part.content)), part.arrays)
    assert np.array_equal(again.probability, fitted.probability)
    assert again.matcher.losses == fitted.matcher.losses
    assert again.matcher.chosen == fitted.matcher.chosen
    assert again.matcher.score.offset == fitted.matcher.score.offset
    assert (again.k, again.depth, again.n_items) == (fitted.k, fitted.depth, fitted.n_items)
    theirs = again.assess(labelled.hits)
    for name, ours in vars(fitted.assess(labelled.hits)).items():
        if name != "shares":
            assert np.array_equal(getattr(theirs, name), ours), name
            continue
        for column, values in vars(ours).items():
            assert np.array_equal(getattr(theirs.shares, column), values), column
    logit = fitted.matcher.logit(PairFeatures.of(labelled.hits))
    assert np.array_equal(again.members(logit, 0.2), fitted.members(logit, 0.2))
    assert again.guarantee(recall=0.5) == fitted.guarantee(recall=0.5)


W = "matcher.score.weights"
TRUTH, CODE, ROW = "shares.truth", "shares.tested.code", "shares.other.query"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, t: c["matcher"]["calibrator"].update(kind="luck"), "calibrator 'luck'"),
        (
            lambda c, t: c["matcher"].update(chosen="luck, beta"),
            "chosen is 'luck, beta', not one of",
        ),
        (lambda c, t: c["matcher"]["score"].pop("offset"), "offset is missing"),
        (lambda c, t: c["matcher"]["score"].update(offset=math.nan), "offset is nan"),
        (lambda c, t: c.update(k=None), "k is None"),
        (lambda c, t: c.update(k=True), "k is True"),
        (lambda c, t: c.update(own_items=0), "own_items is 0"),
        (lambda c, t: c.pop("depth"), "depth is missing"),
        (lambda c, t: t.pop("statistics"), "statistics is missing"),
        (lambda c, t: t.update({TRUTH: t[TRUTH] + 100}), "is not one class for each query"),
        (lambda c, t: t.update({TRUTH: t[TRUTH][1:]}), "is not one class for each query"),
        (lambda c, t: t.update({CODE: t[CODE] + 100}), "classes that are not there"),
        (lambda c, t: t.update({ROW: t[ROW] + 10**6}), "of queries or classes that are not there"),
        (lambda c, t: t.pop("matcher.score.cap"), "cap is missing"),
        (lambda c, t: t.update({"matcher.score.cap": t["matcher.score.cap"][:4]}), "cap has shape"),
        (lambda c, t: t.update({W: t[W] * math.nan}), "weights holds nan"),
        (lambda c, t: t.update({W: t[W].astype("float32")}), "weights is float32"),
        (lambda c, t: t.update(probability=t["probability"] + 1), "probability holds"),
        (lambda c, t: t.update(p_value=t["p_value"] - 1), "p_value holds"),
        (
            lambda c, t: t.update({"matcher.calibrator.numbers": np.zeros((2, 9))}),
            "numbers of its kind",
        ),
    ],
)
def test_a_damaged_calibration_is_an_error(change, message, labelled, quick):
    fitted = calibrated(labelled, K, 150, torch.Generator().manual_seed(0))
    part = calibration_part(fitted)
    content, arrays = json.loads(json.dumps(part.content)), dict(part.arrays)
    change(content, arrays)
    with pytest.raises(FileFormatError, match=message):
        calibration_of(content, arrays)


def test_every_query_tests_a_fit_that_did_not_see_it(labelled):
    """Against fits part by part; ``kept``, by which queries are answered, is that to all."""
    some, order = labelled.take(np.arange(203)), np.random.default_rng(0).permutation(203)
    fitted = storage.calibrated(some, K, 150, order, cross_fit=4)
    features = PairFeatures.of(some.hits)

    def fit(rows, like=None):
        pairs = PairFeatures(features.values[rows], features.exists[rows]).take(K)
        return fit_match_probability(pairs, some.match[rows, :K], like=like)

    kept = fit(order)
    np.testing.assert_array_equal(fitted.matcher.score.weights, kept.score.weights)
    at, held_out, there = 0, fitted.probability.copy(), []
    for part in (order[:51], order[51:102], order[102:153], order[153:]):
        other = fit(np.setdiff1d(order, part, assume_unique=True), kept)
        tests = slice(at, at + len(part))
        at += len(part)
        logit = other.logit(PairFeatures.of(some.take(part).hits))
        held_out[tests] = other(logit)[:, :K]
        there.append(kept(kept.logit(PairFeatures.of(some.take(part).hits)))[:, :K])
        np.testing.assert_allclose(
            fitted.first_match[tests], _conformal.first_match_score(logit, some.match[part])
        )
        np.testing.assert_array_equal(fitted.match[tests], some.match[part, :K])
        np.testing.assert_array_equal(fitted.known[tests], some.known[part])
    assert at == 203
    answering = np.concatenate(there)
    scaled = on_answering_scale(held_out, answering, answering > 0)
    np.testing.assert_allclose(fitted.probability, scaled, rtol=1e-9)
    assert fitted.cross_fitted
    assert not len(fitted.grid)
    halves = storage.calibrated(some, K, 150, order, cross_fit=0)
    np.testing.assert_array_equal(np.sort(fitted.p_value[102:]), np.sort(halves.p_value))
    assert len(fitted.labels.scores) == len(halves.labels.scores)


def test_the_fits_of_parts_take_over_what_was_chosen(labelled, monkeypatch):
    monkeypatch.setattr(_match_probability, "CALIBRATORS", ("beta",))
    features = PairFeatures.of(labelled.hits).take(K)
    kept = fit_match_probability(features, labelled.match[:, :K])
    monkeypatch.undo()
    some = PairFeatures(features.values[:300], features.exists[:300])
    other = fit_match_probability(some, labelled.match[:300, :K], like=kept)
    assert other.chosen == kept.chosen == "all, beta"
    assert other.losses == kept.losses
    assert not np.array_equal(other.score.weights, kept.score.weights)


def test_what_a_query_is_does_not_change_the_probability_that_it_tests(labelled):
    some, order = labelled.take(np.arange(200)), np.arange(200)
    flipped = replace(some, match=some.match.copy())
    flipped.match[:40] = ~flipped.match[:40]  # the first fifth
    fits = [storage.calibrated(each, K, 150, order) for each in (some, flipped)]
    assert fits[0].matcher.chosen == fits[1].matcher.chosen
    # its place among the others is that by a fit without it; how high is that of the fit to all
    for name in ("probability", "label_probability"):
        one, other = (getattr(fit, name).reshape(200, -1)[:40, 0].argsort() for fit in fits)
        np.testing.assert_array_equal(one, other)
    assert not np.allclose(fits[0].probability[40:], fits[1].probability[40:])


def test_a_recall_is_tested_at_half_its_level_where_another_fit_answers(labelled):
    for parts, confidence in ((5, 0.95), (0, 0.9)):
        fitted = storage.calibrated(labelled, K, 150, np.arange(800), cross_fit=parts)
        found = fitted.guarantee(recall=0.8, confidence=0.9, of="match", alpha=None)
        p, right = fitted.probability[:, 0], fitted.match[:, 0]
        wanted = guarantee(p, right, recall=0.8, confidence=confidence)
        assert (found.value, found.bound) == (wanted.value, wanted.bound)
        assert found.confidence == 0.9


def test_few_queries_are_cross_fitted_and_many_are_halved(labelled, quick):
    few = np.random.default_rng(0).integers(800, size=999)
    labelled = replace(labelled, same=None)  # of which some stand for others that are like them
    fitted = storage.calibrated(labelled.take(few), K, 150, np.arange(999))
    assert (len(fitted.probability), fitted.cross_fitted) == (999, True)
    many = np.append(few, 0)
    fitted = storage.calibrated(labelled.take(many), K, 150, np.arange(1000))
    assert (len(fitted.probability), fitted.cross_fitted) == (500, False)
    for parts in (1, 21):
        with pytest.raises(InputError, match="cross_fit"):
            storage.calibrated(labelled, K, 150, np.arange(800), cross_fit=parts)


@pytest.mark.parametrize(("cross_fit", "more"), [(0, 2), (5, 1)])
def test_of_more_queries_one_half_or_all_will_test(labelled, quick, monkeypatch, cross_fit, more):
    monkeypatch.setattr(_queries_needed, "_more", lambda *_: 70)  # where they are refused
    fitted = storage.calibrated(
        labelled.take(np.arange(200)), K, 150, np.arange(200), cross_fit=cross_fit
    )
    thresholds = fitted.grid[:, 0] if cross_fit == 0 else None
    targets = (0.8, 0.9, 0.95, 0.97, 0.98)
    answers = fitted.queries("match", None).answers()
    needed = [queries_needed(*answers, precision=p, thresholds=thresholds) for p in targets]
    tested = [each.more_queries for each in needed]
    assert any(tested), tested
    for target, told in zip(targets, tested, strict=True):
        expected = None if told is None else more * told
        assert fitted.queries_needed(target, of="match", alpha=None).more_queries == expected


def test_few_queries_guarantee_more_where_all_of_them_test(labelled):
    """The truth of each guarantee on the queries that are left."""
    made = {0: 0, 5: 0}
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(800)
        for cross_fit, count in made.items():
            fitted = storage.calibrated(
                labelled.take(order[:100]), K, 150, np.arange(100), cross_fit=cross_fit
            )
            missing = fitted.queries_needed(0.85, of="match", alpha=None)
            made[cross_fit] = count + (missing.more_queries == 0)
    assert made[5] >= made[0] + 3
