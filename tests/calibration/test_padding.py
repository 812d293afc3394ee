"""Places without a hit: no comparisons in what is tested and reported, no hits to any reader."""

from __future__ import annotations

import csv
import io
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
from scipy.stats import binom

from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.calibration._padding import CONVERTED, LARGEST, NO_HIT, is_no_id, is_padding
from laplace_metric.calibration.guarantees._biometric_rates import (
    one_comparison_a_query,
)
from laplace_metric.calibration.guarantees._calibration_queries import error_rates
from laplace_metric.calibration.guarantees._open_set_fraction import precision_of_mixture
from laplace_metric.cli import main
from laplace_metric.errors import InputError, NonFiniteError, ScoresWarning
from laplace_metric.integrations import passed_on, read_hits
from tests.calibration.arrays import made_or_refused

FAISS = np.finfo(np.float32).max


def lists(n=600, k=10, seed=0, lengths=(2, 10), hard=0.0, open_set=0.4):
    """Lists of two lengths; wrong hits of the longer ones score higher by ``hard``."""
    g = np.random.default_rng(seed)
    length = g.choice(lengths, n)[:, None]
    relevant = (np.arange(k) == 0) & (g.random(n) >= open_set)[:, None]
    score = g.normal(size=(n, k)) + 2.5 * relevant + hard * (length == max(lengths)) * ~relevant
    score = np.where(np.arange(k) < length, score, -np.inf)
    order = np.argsort(-score, 1, kind="stable")
    score, relevant = (np.take_along_axis(x, order, 1) for x in (score, relevant))
    return score, relevant & (score > -np.inf)


def widened(score, relevant, k, fill=-np.inf):
    """The same lists with more places."""
    extra = (len(score), k - score.shape[1])
    return np.hstack([score, np.full(extra, fill)]), np.hstack([relevant, np.zeros(extra, bool)])


def true_rate(rule, score, relevant):
    wrong = (score > -np.inf) & ~relevant
    return (rule.scores.probability(score)[wrong] >= rule.value).mean()


# What is padding.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinity_and_what_faiss_writes_is_no_hit_and_any_other_number_is_one(dtype):
    none = np.array([np.inf, -np.inf, FAISS, -FAISS, 3.4e38], dtype)
    converted = np.array([np.sqrt(FAISS), -np.sqrt(FAISS), 1 - FAISS / 2, FAISS / 2 - 1], dtype)
    assert is_padding(none).all()
    assert is_padding(converted).all()
    assert is_padding(np.array([np.sqrt(2 + 2 * float(FAISS)), np.finfo(float).max])).all()
    hits = np.array([0, -1, 65504, 1e18, 1.8e19, 1.9e19, 1.6e38, 1.8e38, 3.3e38, np.nan], dtype)
    assert not is_padding(hits).any()
    assert torch.equal(is_padding(torch.tensor(none)), torch.ones(5, dtype=torch.bool))
    assert np.float32(LARGEST) == FAISS
    assert all(is_padding(np.float64(x)) for x in CONVERTED)


def test_minus_one_none_and_nan_are_no_ids():
    assert all(map(is_no_id, (-1, -1.0, np.int64(-1), "-1", None, float("nan"))))
    assert not any(map(is_no_id, (0, "0", "", True, False, "-10", -2, (1,))))


# What is tested.


def test_a_false_match_rate_of_lists_of_two_lengths_is_kept():
    """Each rule is broken with probability .05 at most; three of four are if padding counts."""
    new, right = lists(20_000, seed=10**6)
    broken = given = 0
    for seed in range(40):
        found = calibrate_scores(*lists(seed=seed), cross_fit=0, seed=seed)
        rule, _ = made_or_refused(found.guarantee, fmr=0.05)
        given += rule is not None
        broken += rule is not None and true_rate(rule, new, right) > 0.05
    assert given >= 30, "refused are those whose own comparisons show more"
    assert broken <= binom.ppf(0.999, 40, 0.05)


def hubs(n, seed):
    """Half of the queries have ten hits that are all relevant or all wrong, half have one."""
    g = np.random.default_rng(seed)
    long, mated = (g.random(n) < 0.5)[:, None], (g.random(n) < 0.5)[:, None]
    score = g.normal(size=(n, 10)) + np.where(mated, 3.0, np.where(long, 1.0, -2.0))
    score = -np.sort(-np.where(long | (np.arange(10) == 0), score, -np.inf), 1)
    return score, mated & (score > -np.inf)


def test_each_comparison_counts_alike_not_each_query():
    """Of the comparisons that are no match, ten of eleven are in the long lists, which score high.

    Where each query counts alike, three of four of these rules are broken.
    """
    new, right = hubs(20_000, 10**6)
    broken = given = 0
    for seed in range(25):
        found = calibrate_scores(*hubs(1_500, seed), cross_fit=0)
        rule, _ = made_or_refused(found.guarantee, fmr=0.1)
        given += rule is not None
        broken += rule is not None and true_rate(rule, new, right) > 0.1
    assert given >= 15, "refused are those whose own comparisons show more"
    assert broken <= binom.ppf(0.999, 25, 0.05)


@pytest.mark.parametrize("fill", [-np.inf, -FAISS])
def test_more_empty_places_change_no_number(fill):
    score, relevant = lists(1_000)
    one, other = calibrate_scores(score, relevant), calibrate_scores(
        *widened(score, relevant, 20, fill)
    )  # fmt: skip
    np.testing.assert_allclose(
        one.queries.probability, other.queries.probability[:, :10], rtol=1e-9
    )
    for rate, target in (
        ("precision", 0.8), ("recall", 0.5), ("fmr", 0.05),
        ("fpir", 0.2),
    ):  # fmt: skip
        rules = [c.guarantee(**{rate: target}) for c in (one, other)]
        assert str(rules[0]) == str(rules[1])
        assert rules[0].rates() == rules[1].rates()
        assert (rules[0].bound, rules[0].n_tested) == (rules[1].bound, rules[1].n_tested)
        np.testing.assert_array_equal(*(rule.precision_at([0.0, 0.5]) for rule in rules))
    kept = [c.keep_relevant(score if c is one else widened(score, relevant, 20)[0], 0.2)
            for c in (one, other)]  # fmt: skip
    np.testing.assert_array_equal(*kept)
    assert one.queries_needed(0.95) == other.queries_needed(0.95)


def test_one_hit_in_twenty_places_is_one_comparison():
    g = np.random.default_rng(0)
    right = g.random(800) < 0.6
    score = (g.normal(size=800) + 2.5 * right)[:, None]
    flat = calibrate_scores(score, right[:, None], cross_fit=0)
    wide = calibrate_scores(*widened(score, right[:, None], 20), cross_fit=0)
    rules = [c.guarantee(fmr=0.05) for c in (flat, wide)]
    assert rules[0].rates() == pytest.approx(rules[1].rates(), abs=1e-9)
    new = g.normal(size=(20_000, 1))
    accepted = rules[1](widened(new, new > np.inf, 20)[0]).answered
    assert 0 < accepted.mean() < 0.05
    assert rules[1].rates()["fmr"] == pytest.approx(accepted.mean(), abs=0.02)


def test_a_comparison_is_drawn_of_few_queries_where_few_have_long_lists():
    score, relevant = lists(3_000, lengths=(1, 1, 1, 1, 10))
    calibration = calibrate_scores(score, relevant)
    held_out = calibration.queries
    drawn, queries = one_comparison_a_query(held_out.probability, held_out.relevant)
    wrong = (calibration.queries.relevant == 0).sum(1)
    assert queries == (wrong > 0).sum()
    assert len(drawn) == pytest.approx(wrong.sum() / wrong.max(), abs=4 * queries**0.5)
    with pytest.raises(InputError, match=r"takes 598 .* has \d+, worth \d+.*differ"):
        calibration.guarantee(fmr=0.005)


# What is reported.


def test_rates_and_precisions_leave_empty_places_out():
    p = np.array([[0.9, 0.2], [0.8, 0.0], [0.0, 0.0], [0.6, 0.4]])
    relevant = np.array([[1, 0], [0, NO_HIT], [NO_HIT, NO_HIT], [1, 1]], np.int8)
    found = error_rates(0.0, p, relevant, np.array([1, 0, 0, 1], np.int8))
    assert found == {
        "coverage": 3 / 4,
        "precision": 2 / 3,
        "fmr": 1.0,
        "fnmr": 0.0,
        "fpir": 1.0,
        "fnir": 0.0,
    }
    found = error_rates(0.3, p, relevant, np.array([1, 0, 0, 1], np.int8))
    assert found["fmr"] == 1 / 2
    share, first = np.array([0.5]), relevant[:, 0]
    mated = np.array([1, 0, 0, 1], np.int8)
    whole = precision_of_mixture(share, 0.3, p[:, 0], first, mated, 0.1)
    # both queries with a match are right; of those without, one has a hit, which is accepted
    assert whole[0][0] == pytest.approx(0.5 / (0.5 + 0.5 * 0.5))
    unjudged = np.array([1, 0, NO_HIT, -1], np.int8)  # whose query counts for nothing
    some = precision_of_mixture(share, 0.3, p[:, 0], unjudged, mated, 0.1)
    assert some[0][0] == whole[0][0]
    assert some[1][0] < whole[1][0]


def test_a_rule_reports_the_rate_that_new_queries_have():
    rule = calibrate_scores(*lists(3_000)).guarantee(fmr=0.05)
    new, right = lists(20_000, seed=1)
    assert rule.rates()["fmr"] == pytest.approx(true_rate(rule, new, right), abs=0.01)
    assert rule.estimate == rule.rates()["fmr"]


# Queries without a hit.


def test_queries_without_a_hit_are_never_answered_and_in_no_rate_of_hits():
    score, relevant = lists(900, lengths=(5, 10))
    score[::3], relevant[::3] = -np.inf, False
    with pytest.warns(ScoresWarning, match="300 of 900.*no hit"):
        found = calibrate_scores(score, relevant, cross_fit=0)
    rule = found.guarantee(precision=0.8)
    assert not rule(score).answered[::3].any()
    assert (found.queries.mated[found.queries.relevant[:, 0] == NO_HIT] == -1).all()
    alone = calibrate_scores(np.delete(score, np.s_[::3], 0), np.delete(relevant, np.s_[::3], 0),
                             cross_fit=0)  # fmt: skip
    for name, rate in rule.rates().items():
        if name != "coverage":
            other = alone.guarantee(precision=0.8).rates()[name]
            assert rate == pytest.approx(other, abs=0.1), name
    assert found.open_set_fraction(score[1::3]).n == 300
    assert found.open_set_fraction(score[:600]).n == 400


def test_relevant_items_of_queries_without_a_hit_count_as_left_out():
    score, relevant = lists(800, lengths=(5, 10), open_set=0.0)
    items = {q: [f"{q}.{i}" for i in range(int((row > -np.inf).sum()))] for q, row in
             enumerate(score)}  # fmt: skip
    qrels = {q: [i for i, r in zip(items[q], relevant[q], strict=False) if r] for q in items}
    score[::10] = -np.inf
    items |= {q: [] for q in range(0, 800, 10)}
    with pytest.warns(ScoresWarning, match="80 of 800.*no hit"):
        found = calibrate_scores(score, qrels, items=items, cross_fit=0)
    assert (found.queries.total[found.queries.relevant[:, 0] == NO_HIT] == 1).all()
    lost = float((found.queries.relevant[:, 0] == NO_HIT).mean())
    found.keep_relevant(score, lost + 0.02)
    with pytest.raises(InputError, match=f"{lost:.1%}.*relevant.*not among"):
        found.keep_relevant(score, lost - 0.01)


@pytest.mark.parametrize("evidence", [False, True])
def test_one_query_without_a_hit_does_not_stop_a_batch(evidence):
    score, relevant = lists()
    age = np.random.default_rng(0).normal(size=len(score))
    given = {"evidence": {"age": age}} if evidence else {}
    rule = calibrate_scores(score, relevant, **given).guarantee(precision=0.7)
    new, old = score[:50].copy(), age[:50].copy()
    new[7], old[7] = -np.inf, np.nan
    column = {"age": old} if evidence else {}
    accepted, p = rule(new, **column).answered, rule.scores.probability(new, **column)
    assert not accepted[7]
    assert not p[7].any()
    rest = np.delete(np.arange(50), 7)
    column = {"age": old[rest]} if evidence else {}
    np.testing.assert_array_equal(accepted[rest], rule(new[rest], **column).answered)
    nothing = np.full((2, 10), -np.inf)
    column = {"age": np.full(2, np.nan)} if evidence else {}
    assert not rule(nothing, **column).answered.any()
    assert rule.scores.keep_relevant(nothing, 0.3, **column).tolist() == [0, 0]


def test_a_rule_that_accepts_everything_accepts_no_empty_place():
    calibration = calibrate_scores(*lists())
    rule = Rule(0.0, scores=calibration)
    score = lists(3)[0]
    score[1] = -np.inf
    assert rule(score).answered.tolist() == [True, False, True]


# Every reader.


def faiss_hits(kind):
    """Scores, relevance and ids as FAISS fills them where two of seven lists are short."""
    score, relevant = lists(lengths=(10,))
    score, relevant = score.astype(np.float32), relevant.copy()
    short = np.arange(len(score)) % 7 < 2
    score[short, 6:] = -FAISS
    ids = np.random.default_rng(0).random((len(score), 50)).argsort(1)[:, :10]
    ids[short, 6:] = -1
    relevant[short, 6:] = True  # what labels[ids] == label says of the id -1
    return (-score if kind == "distance" else score), relevant, ids, short


@pytest.mark.parametrize("kind", ["similarity", "distance", "score"])
def test_what_faiss_fills_lists_with_is_no_hit(kind):
    scores, relevant, ids, short = faiss_hits(kind)
    worst = np.inf if kind == "distance" else -np.inf
    plain = np.where(is_padding(scores), worst, scores)
    one = calibrate_scores(scores, relevant, kind=kind)
    other = calibrate_scores(plain, relevant, kind=kind)
    np.testing.assert_array_equal(one.queries.probability, other.queries.probability)
    np.testing.assert_array_equal(one.queries.relevant, other.queries.relevant)
    assert not one.probability(scores)[short, 6:].any()
    rule = one.guarantee(precision=0.8)
    np.testing.assert_array_equal(rule(scores).answered, rule(plain).answered)
    kept = one.keep_relevant(scores, 0.2)
    assert kept[short].max() <= 6
    qrels = {q: ids[q][relevant[q] & (ids[q] >= 0)] for q in range(len(ids))}
    by_id = calibrate_scores(scores, qrels, items=ids, kind=kind)
    np.testing.assert_array_equal(by_id.queries.probability, one.queries.probability)
    np.testing.assert_array_equal(by_id.queries.relevant, one.queries.relevant)


@pytest.mark.parametrize("change", [np.sqrt, lambda d: 1 - d / 2], ids=["root", "cosine"])
def test_converted_padding_is_no_hit(change):
    scores, relevant, _, short = faiss_hits("distance")
    with np.errstate(over="ignore"):
        scores = change(scores - scores.min())
    kind = "distance" if change is np.sqrt else "similarity"
    found = calibrate_scores(scores, relevant, kind=kind)
    assert not found.probability(scores)[short, 6:].any()
    assert (found.queries.relevant == NO_HIT).any()


@pytest.mark.parametrize("as_lists", [False, True])
def test_an_id_of_minus_one_is_no_hit_whatever_its_score(as_lists):
    scores, relevant, ids, _ = faiss_hits("similarity")
    qrels = {q: ids[q][relevant[q] & (ids[q] >= 0)].tolist() for q in range(len(ids))}
    zero = np.where(ids < 0, np.float32(-9), scores)
    items = {q: row.tolist() for q, row in enumerate(ids)} if as_lists else ids
    found = calibrate_scores(zero, qrels, items=items)
    np.testing.assert_array_equal(
        found.queries.relevant, calibrate_scores(scores, qrels, items=ids).queries.relevant
    )
    assert (found.queries.relevant == NO_HIT).sum() > 0


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_graph_knows_no_hit_and_nan(tmp_path, format):
    scores, relevant, _, short = faiss_hits("distance")
    rule = calibrate_scores(scores, relevant, kind="distance").guarantee(precision=0.8)
    new = scores[:20].copy()
    new[3] = FAISS
    expected = rule.scores.probability(new)
    new = np.vstack([new, np.full((1, 10), np.nan, np.float32)])
    if format == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        session = runtime.InferenceSession(rule.export(tmp_path / "r.onnx").path)
        p, accept = session.run(None, {"scores": new})
    else:
        graph = rule.export(tmp_path / "r.pt2", "torch")
        p, accept = (x.numpy() for x in torch.export.load(graph.path).module()(torch.tensor(new)))
    np.testing.assert_allclose(p[:20], expected, atol=1e-6)
    assert not p[:20][short[:20], 6:].any()
    assert not p[3].any()
    assert np.isnan(p[20]).all()
    assert not accept[[3, 20]].any()


def test_a_rule_of_a_file_knows_the_empty_places(tmp_path):
    rule = calibrate_scores(*lists()).guarantee(fmr=0.05)
    rule.save(tmp_path / "rule.json")
    again = Rule.load(tmp_path / "rule.json")
    assert again.rates() == rule.rates()
    assert again.value == rule.value


def test_stores_that_fill_short_lists_are_read_without_the_filling():
    rows = [(7, 0.2), (3, 0.5), (-1, float(FAISS)), (-1, float(FAISS))]
    answers = [rows, [(1, 0.1), (2, 0.2), (5, 0.3), (None, np.inf)], [(-1, float(FAISS))] * 4]
    hits = read_hits("pgvector", answers, metric="<->")
    assert hits.items == {0: [7, 3], 1: [1, 2, 5], 2: []}
    np.testing.assert_array_equal(hits.scores, [[0.2, 0.5, np.inf], [0.1, 0.2, 0.3], [np.inf] * 3])
    assert read_hits("pgvector", answers, metric="<->", k=3).scores.shape == (3, 3)


def test_no_empty_place_is_passed_on():
    scores, relevant, *_ = faiss_hits("similarity")
    rule = calibrate_scores(scores, relevant).guarantee(precision=0.7)
    row = [9.0, 8.0, *[-float(FAISS)] * 8]
    assert rule([row]).answered[0]
    assert len(passed_on(rule, row)) == 2
    assert passed_on(rule, [*row, -float(FAISS)]) == passed_on(rule, row[:2])
    assert passed_on(rule, [-float(FAISS)] * 10) == []


def test_decide_leaves_the_filling_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores, relevant, ids, short = faiss_hits("distance")
    header = ["query", "item", "score", "relevant"]
    filled = [[q, ids[q, j], scores[q, j], int(relevant[q, j])] for q in range(600)
              for j in range(10)]  # fmt: skip
    for name, rows in (("a", filled), ("b", [row for row in filled if row[1] >= 0])):
        with open(f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        for rate in ("fmr", "precision"):
            target = "0.05" if rate == "fmr" else "0.8"
            words = ["--kind", "distance", "--output", f"{name}.{rate}.json"]
            with redirect_stdout(io.StringIO()):
                assert main(["decide", f"{name}.csv", f"--{rate}", target, *words]) == 0
    for rate in ("fmr", "precision"):
        one, other = (Rule.load(f"{name}.{rate}.json") for name in "ab")
        assert str(one) == str(other)
        assert one.rates() == other.rates()
    words = ["--apply", "a.precision.json", "--output", "decided.csv"]
    with redirect_stdout(io.StringIO()):
        assert main(["decide", "a.csv", *words]) == 0
    with open("decided.csv", newline="") as file:
        decided = list(csv.DictReader(file))
    empty = [row for row in decided if row["item"] == "-1"]
    assert len(empty) == short.sum() * 4
    assert {row["match_probability"] for row in empty} == {"0.0"}
    assert min(int(row["rank"]) for row in empty) == 7


def test_distances_of_any_engine_to_a_calibrated_index(points, embedder):
    x, y = points
    index = embedder.index(x[:300], y[:300], progress=False)
    index.calibrate(x[300:600], y[300:600], portable=True)
    found = index.search(x[560:600], k=30)
    given = {"labels": found.labels, "epistemic": found.epistemic}
    distance = found.distance.double().clone()
    verdicts = []
    for fill in (np.inf, float(FAISS), float(np.sqrt(FAISS))):
        distance[:, 25:] = fill
        verdicts.append(index.calibration.apply(distance, **given))
    for verdict in verdicts[1:]:
        for name in ("match_probability", "label_probability", "p_value"):
            one, other = getattr(verdict, name), getattr(verdicts[0], name)
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


# Lists of another length.


def test_lists_may_be_padded_to_another_length_than_those_that_calibrated():
    score, relevant = lists()
    rule = calibrate_scores(score, relevant).guarantee(precision=0.7)
    wide = widened(score, relevant, 15, -FAISS)[0]
    np.testing.assert_array_equal(rule(wide).answered, rule(score).answered)
    np.testing.assert_array_equal(rule.scores.probability(wide), rule.scores.probability(score))
    wide[3, :12] = np.linspace(1, 0, 12)
    with pytest.raises(InputError, match="15 hits.*pass 10"):
        rule(wide)


@pytest.mark.parametrize("name", ["scores", "relevant"])
def test_lists_of_unequal_length_say_how_to_end_them(name):
    score, relevant = lists(lengths=(10,))
    given = {"scores": score.tolist(), "relevant": relevant.tolist()}
    given[name] = [row[: 1 + i % 5] for i, row in enumerate(given[name])]
    end = "-inf" if name == "scores" else "-1"
    with pytest.raises(InputError, match=f"{name}.*1 to 5.*with {end}"):
        calibrate_scores(given["scores"], given["relevant"])
    column = np.empty(len(score), object)
    column[:] = given[name]
    with pytest.raises(InputError, match=f"{name}.*1 to 5"):
        calibrate_scores(**(given | {name: column}))


def test_lists_that_end_with_nan_or_none_are_refused_by_row():
    score, relevant = lists(lengths=(10,))
    score[4, 6:] = np.nan
    with pytest.raises(NonFiniteError, match=r"NaN in row 4.*\(1 rows\).*pass -inf"):
        calibrate_scores(score, relevant)
    with pytest.raises(InputError, match="None in row 4.*pass -inf"):
        calibrate_scores([[None if v != v else v for v in row] for row in score.tolist()], relevant)
    score[4, 6:], judged = -np.inf, relevant.astype(float)
    judged[4, 6:] = np.nan  # where there is no hit, nothing is read
    calibrate_scores(score, judged)
