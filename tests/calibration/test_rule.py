"""A rule: made of the queries that test it, applied to what it was made of, saved in one file."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import binom

from laplace_metric import LaplaceEmbedder, Rule, calibrate_scores
from laplace_metric.calibration import Answers, CalibrationQueries, Guarantee, OpenSetFraction
from laplace_metric.calibration.guarantees._theory import Chosen
from laplace_metric.calibration.rules._guarantee import judged_queries
from laplace_metric.errors import FileFormatError, InputError, NotFittedError
from tests.calibration.arrays import made_or_refused
from tests.saved_files import flip

CLASSES = 8


def points(n: int, seed: int, classes: int = CLASSES):
    g = np.random.default_rng(seed)
    y = g.integers(0, classes, n)
    return np.eye(12)[y] + 0.35 * g.normal(size=(n, 12)), y


@pytest.fixture(scope="module")
def index():
    """Of eight classes, calibrated by halves with queries of ten."""
    x, y = points(400, 0)
    index = LaplaceEmbedder.from_embeddings(*points(200, 1)).index(x, y)
    index.calibrate(*points(1200, 2, 10))
    return index


@pytest.mark.parametrize("of", ["match", "label"])
@pytest.mark.parametrize(
    "asked", [{"precision": 0.9}, {"recall": 0.7}, {"fmr": 0.05}, {"fpir": 0.2}]
)
def test_every_rate_of_an_index_is_that_of_its_answers(of, asked, index):
    """By a count over the calibration queries, with the bound of a binomial test."""
    if of == "label" and "fmr" in asked:
        with pytest.raises(InputError, match="fmr=.*rate.*comparisons"):
            index.guarantee(of=of, **asked)
        return
    rule, c = index.guarantee(of=of, **asked), index.calibration
    assert (rule.of, rule.proven, rule.alpha) == (of, True, 0.05)
    p = c.probability if of == "match" else c.label_probability[:, None]
    right = c.match if of == "match" else c.right[:, None]
    accepted = (p >= rule.value) & (c.p_value > 0.05)[:, None]
    ((name, target),) = asked.items()
    counted = {
        "precision": right[accepted[:, 0], 0].mean(),
        "recall": accepted[right[:, 0], 0].mean(),
        "fmr": accepted[~right].mean(),
        "fpir": accepted[~c.known, 0].mean(),
    }
    assert rule.estimate == pytest.approx(counted[name])
    assert rule.coverage == pytest.approx(accepted[:, 0].mean())
    if name == "fpir":
        n, above = int((~c.known).sum()), int(accepted[~c.known, 0].sum())
        assert (rule.n_tested, binom.cdf(above, n, target) <= 0.05) == (n, True)
    assert counted[name] >= target if name in ("precision", "recall") else counted[name] <= target


def test_a_false_positive_identification_rate_holds_for_new_queries():
    """In at most one of twenty calibrations the true rate is above the target."""
    x, y = points(300, 0)
    index = LaplaceEmbedder.from_embeddings(*points(200, 1)).index(x, y)
    new, of = points(4000, 3, 12)
    strange, broken = new[of >= CLASSES], 0
    found = None
    for seed in range(20):
        index.calibrate(*points(1000, 10 + seed, 10))
        rule = index.guarantee(fpir=0.1, alpha=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = index.search(strange[:1000], k=1)
        broken += rule(found).answered.mean() > 0.1
    assert found is not None
    assert broken <= 4  # P(Bin(20, .05) > 4) = .003


def test_what_a_cross_fitted_index_cannot_guarantee_is_refused():
    x, y = points(300, 0)
    index = LaplaceEmbedder.from_embeddings(x, y).cross_index(x, y)
    for asked in ({"fmr": 0.1}, {"fpir": 0.1}, {"precision": 0.9, "open_set_fraction": 0.2}):
        with pytest.raises(InputError, match=r"queries held out.*cross_fit=0"):
            index.guarantee(**asked)
    rule = index.guarantee(precision=0.9)
    assert not rule.proven
    assert "(simulated, not proven)" in str(rule)


def test_a_precision_at_another_share_of_open_set_queries(index):
    usual, more = (index.guarantee(precision=0.7, open_set_fraction=s) for s in (0.2, 0.5))
    assert more.value > usual.value
    assert "where 50.0% of the queries have no match" in str(more)
    known = index.calibration.known
    precision, bound = more.precision_at([float((~known).mean()), 0.5])
    assert precision[0] > precision[1] > bound[1]


def test_one_rate_is_asked_for(index):
    for asked in ({}, {"precision": 0.9, "fpir": 0.1}):
        with pytest.raises(InputError, match="precision=, recall=, fmr=.*fpir="):
            index.guarantee(**asked)
    with pytest.raises(InputError, match="open_set_fraction=.*for precision="):
        index.guarantee(recall=0.5, open_set_fraction=0.3)


def rules(index):
    scores = np.random.default_rng(0).random(1200)
    of_scores = calibrate_scores(scores, scores + 0.2 > np.random.default_rng(1).random(1200))
    return {
        "label": index.guarantee(precision=0.9),
        "match": index.guarantee(recall=0.7, of="match", alpha=None),
        "fpir": index.guarantee(fpir=0.2),
        "largest": index.calibration.largest_guarantee(),
        "share": index.guarantee(precision=0.8, open_set_fraction=0.3),
        "number": Rule.at(0.7, "match", None),
        "scores": of_scores.guarantee(precision=0.8),
        "largest of scores": of_scores.largest_guarantee(),
    }


def test_a_saved_rule_is_the_same_rule(index, tmp_path):
    found = index.search(points(60, 5)[0])
    for name, rule in rules(index).items():
        rule.save(tmp_path / "rule.safetensors")
        again = Rule.load(tmp_path / "rule.safetensors")
        assert again == rule, name
        assert str(again) == str(rule)
        given = found if rule.scores is None else np.linspace(0, 1, 60)
        ours, theirs = rule(given), again(given)
        assert ours.label.tolist() == theirs.label.tolist()
        assert ours.reason.tolist() == theirs.reason.tolist()
        if rule.queries is not None:
            assert again.rates() == rule.rates()


def test_a_rule_that_does_not_follow_from_its_queries_is_damaged(index, tmp_path):
    path, rule = tmp_path / "rule.safetensors", index.guarantee(precision=0.9)
    for other in (
        replace(rule, value=rule.value - 0.1),
        replace(rule, guarantee=replace(rule.guarantee, target=0.999)),
    ):
        other.save(path)
        with pytest.raises(FileFormatError, match="not follow.*queries"):
            Rule.load(path)
    rule.save(path)
    flip(path, "queries/probability")
    with pytest.raises(FileFormatError, match="rule.safetensors"):
        Rule.load(path)


def test_a_threshold_of_ones_own_guarantees_nothing_and_says_so(index, tmp_path):
    rule = Rule.at(0.5)
    assert (rule.of, rule.alpha, rule.quantity) == ("label", 0.05, None)
    assert "guarantees nothing" in str(rule)
    for asked in (rule.rates, lambda: rule.precision_at(0.3)):
        with pytest.raises(NotFittedError, match="no queries.*this rule"):
            asked()
    with pytest.raises(InputError, match="this rule.*an index"):
        rule.export(tmp_path / "rule.onnx")


def test_answers_are_arrays_of_numpy_and_a_table(index):
    pandas = pytest.importorskip("pandas")
    answers = index.guarantee(precision=0.9)(index.search(torch.from_numpy(points(50, 6, 10)[0])))
    assert answers.among is answers.query_ids is answers.level is None
    columns = {name: x for name, x in vars(answers).items() if x is not None}
    assert {type(x) for x in columns.values()} == {np.ndarray}
    assert (answers.label[~answers.answered] == np.array(None)).all()
    assert set(answers.reason) <= {"", "unfamiliar", "uncertain"}
    table = answers.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table) == ["label", "probability", "reason", "answered"]
    assert [one.answered for one in answers] == answers.answered.tolist()
    label, probability, reason = answers[4]
    assert (label, probability, reason) == tuple(table.iloc[4, :3])
    assert f"{answers.answered.sum()} of 50 queries are answered" in repr(answers)


def test_an_estimated_share_is_simulated():
    g = np.random.default_rng(0)
    right, score = g.random(1500) < 0.7, g.normal(size=1500)
    calibration = calibrate_scores(score + 3 * right, right, mated=right)
    share = OpenSetFraction(0.4, 0.45, 0.5, 200)
    assert calibration.guarantee(precision=0.8, open_set_fraction=0.4).proven
    assert not calibration.guarantee(precision=0.8, open_set_fraction=share).proven


def test_a_query_at_alpha_is_unfamiliar_and_one_above_is_not(index):
    found = index.search(points(60, 7)[0])
    p_value = found.p_value.numpy()
    alpha = float(np.sort(p_value)[30])
    answers = Rule.at(0, "match", alpha)(found)
    assert (answers.reason[p_value <= alpha] == "unfamiliar").all()
    assert answers.answered[p_value > alpha].all()
    assert 0 < answers.answered.sum() < 60
    p = found.label_probability.numpy()
    least = float(np.sort(p)[30])
    sure = Rule.at(least, alpha=None)(found)
    assert np.array_equal(sure.answered, p >= least)
    assert p[sure.answered].min() == least


def test_a_false_match_rate_of_an_index_counts_neighbours_that_were_found():
    """Three queries of four find two items: eight places of ten are no comparisons."""
    x, y = points(400, 0)
    index = LaplaceEmbedder.from_embeddings(*points(200, 1)).index(x, y)
    items = index.items.encoded.mean.numpy()

    def find(queries, k):
        rows = np.square(queries[:, None] - items).sum(-1).argsort(1)[:, :k]
        rows[np.arange(len(rows)) % 4 > 0, 2:] = -1
        return rows

    few = index.searched_by(find)
    few.calibrate(*points(1200, 2, 10), cross_fit=0)
    rule, c = few.guarantee(fmr=0.05, alpha=None), few.calibration
    there = c.probability > 0
    assert 0.5 < (~there).mean() < 0.7
    false = (c.probability >= rule.value)[there & ~c.match].mean()
    assert rule.estimate == rule.rates()["fmr"] == pytest.approx(false)
    found = few.search((new := points(2000, 8, 10))[0], 10)
    wrong = (found.positions.numpy() >= 0) & (found.labels != new[1][:, None])
    assert (found.match_probability.numpy() >= rule.value)[wrong].mean() <= 0.05


@pytest.mark.parametrize(
    ("quantity", "estimate"), [("precision", 0.79), ("recall", 0.79), ("fmr", 0.81), ("fpir", 0.81)]
)
def test_no_rule_is_made_whose_own_queries_show_less_than_it_guarantees(quantity, estimate):
    g = np.random.default_rng(0)
    p = g.random(100)
    queries = judged_queries(p, p > 0.5)
    kept = Chosen(0.5, 0.8, 0.8, 0.8, 100)
    assert Rule.of_chosen(kept, queries, Guarantee(quantity, 0.8)).estimate == 0.8
    for shown in (estimate, float("nan")):
        with pytest.raises(InputError, match=f"{quantity}=0.8 .*guaranteed: .*show {shown}"):
            Rule.of_chosen(kept._replace(estimate=shown), queries, Guarantee(quantity, 0.8))


def test_a_false_match_rate_that_all_comparisons_break_is_refused():
    """One comparison of each query is tested, and all five are shown."""
    refused = 0
    for seed in range(30):
        g = np.random.default_rng(seed)
        p = np.sort(g.random((60, 5)), 1)[:, ::-1]
        queries = CalibrationQueries.of_answers(
            p, np.zeros((60, 5), bool), np.ones(60, bool), grid=np.ones(9),
            abstained=np.zeros(60, bool), cross_fitted=False,
        )  # fmt: skip
        rule, why = made_or_refused(Rule.guaranteeing, queries, Guarantee("fmr", 0.4, 0.6))
        refused += rule is None
        assert rule is None or rule.estimate <= 0.4
        assert rule is not None or "cannot be guaranteed: at the threshold of its test" in why
    assert 0 < refused < 30


@pytest.mark.parametrize("number", [np.float32, Fraction])
def test_numbers_of_other_types_are_floats_in_a_rule_and_in_its_file(number, tmp_path):
    generator = np.random.default_rng(0)
    right = generator.random(600) < 0.8
    scores = np.where(right, generator.normal(0.8, 0.07, 600), generator.normal(0.6, 0.07, 600))
    calibration = calibrate_scores(scores, right)
    rule = calibration.guarantee(precision=number(0.875), confidence=number(0.9375))
    rule.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    assert (again.target, again.value) == (0.875, rule.value)
    assert rule == calibration.guarantee(precision=0.875, confidence=0.9375)


def test_hits_behind_those_that_were_tested_are_not_passed_on():
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(150, 6, generator=g)

    def drawn(y):
        return centres[y] + 0.35 * torch.randn(len(y), 6, generator=g), y

    fitted, items = drawn(torch.arange(900) % 150), drawn(torch.arange(600) % 150)
    held_out, (later, truth) = (drawn(torch.randint(150, (1500,), generator=g)) for _ in range(2))
    index = LaplaceEmbedder.from_embeddings(*fitted).index(*items)
    index.calibrate(*held_out, k=2, portable=True, cross_fit=0)
    rule = index.guarantee(precision=0.8, of="hits", alpha=None)
    assert "passes on a hit, of the first 2 of a query, if its" in str(rule)
    two, many = (rule.passed(index.search(later, k)) for k in (2, 50))
    assert not many[:, 2:].any()
    assert np.array_equal(two, many[:, :2])
    right = index.search(later, 50).labels == truth.numpy()[:, None]
    assert right[many].mean() >= 0.8
    with pytest.raises(InputError, match="1 hits.*of 2 were tested.*k=2"):
        rule.passed(index.search(later, 1))


@pytest.mark.parametrize("none", [[], np.array([]), np.empty(0, int), slice(0)])
def test_answers_of_no_rows_are_none(none):
    flags = np.ones(3, bool)
    answers = Answers.of(np.array(["a", "b", "c"]), np.full(3, 0.9), flags, ~flags)
    assert len(answers[none]) == 0
    assert answers[flags].label.tolist() == ["a", "b", "c"]
    assert len(answers[~flags]) == 0
