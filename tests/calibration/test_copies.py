"""Copies among the calibration queries count once; equal scores of different queries do not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from laplace_metric.calibration import calibrate_scores, guarantee
from laplace_metric.errors import InputError, ScoresWarning


def queries(n, seed=0, k=1, gap=1.0):
    g = np.random.default_rng(seed)
    right = (np.arange(k) == 0) & (g.random(n) < 0.7)[:, None]
    score = 0.6 + 0.07 * (g.normal(size=(n, k)) + gap * right)
    order = np.argsort(-score, 1)
    return np.take_along_axis(score, order, 1), np.take_along_axis(right, order, 1)


def warned(score, relevant, **given):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        calibration = calibrate_scores(score, relevant, **given)
    return calibration, " ".join(str(w.message) for w in found)


@pytest.mark.parametrize(("k", "digits"), [(1, 16), (1, 3), (4, 16), (4, 3), (9, 1)])
def test_a_question_that_is_asked_often_counts_once(k, digits):
    score, relevant = queries(60, k=k)
    score = score.round(digits)
    order = np.random.default_rng(1).permutation(60 * 25)
    many = [np.repeat(x, 25, 0)[order] for x in (score, relevant)]
    found, said = warned(*many)
    distinct = len(np.unique(score, axis=0))
    assert f"{1500 - distinct:,} of 1,500 queries are copies" in said
    assert f"each of the {distinct} distinct queries counts once" in said
    assert len(found.queries.mated) == distinct
    assert found.cross_fitted == (k > 1)  # of few queries: with one score nothing is learnt
    with pytest.raises(InputError, match="cannot be guaranteed"):
        found.guarantee(precision=0.95)


def test_copies_from_batches_of_different_sizes_differ_by_a_rounding():
    score, relevant = (np.repeat(x, 20, 0) for x in queries(50, k=3))
    noise = np.random.default_rng(1).normal(size=score.shape)
    found, said = warned((score + 2e-9 * noise), relevant)
    assert "950 of 1,000 queries are copies" in said
    assert len(found.queries.mated) == 50


def test_columns_of_the_query_follow_it():
    score, relevant = queries(60, k=2)
    age, total = np.arange(60.0), relevant.sum(1) + np.arange(60) % 2
    order = np.random.default_rng(1).permutation(60 * 20)
    repeated = [np.repeat(x, 20, 0)[order] for x in (score, relevant, age, total)]
    found, said = warned(repeated[0], repeated[1], evidence={"age": repeated[2]},
                         total=repeated[3], mated=repeated[1].any(1))  # fmt: skip
    assert "1,140 of 1,200 queries are copies" in said
    one = calibrate_scores(score, relevant, evidence={"age": age}, total=total)
    assert sorted(found.queries.total) == sorted(one.queries.total)
    assert len(found.queries.probability) == 60


def test_other_evidence_or_other_items_are_other_queries():
    score, relevant = (np.repeat(x, 20, 0) for x in queries(60))
    age = np.random.default_rng(0).normal(size=1_200)
    assert "copies" not in warned(score, relevant, evidence={"age": age})[1]
    items = np.arange(1_200)[:, None]
    qrels = {q: [q] if relevant[q, 0] else [] for q in range(1_200)}
    assert "copies" not in warned(score, qrels, items=items)[1]
    same = {q: [q // 20] if relevant[q, 0] else [] for q in range(1_200)}
    assert "1,140 of 1,200 queries are copies" in warned(score, same, items=items // 20)[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("digits", [1, 2, 3])
def test_rounded_scores_are_no_copies(digits, seed):
    score, relevant = queries(1_500, seed)
    found, said = warned(score.round(digits), relevant)
    assert "copies" not in said
    assert len(found.queries.mated) == 1_500


@pytest.mark.parametrize("seed", range(4))
def test_reciprocal_ranks_are_no_copies(seed):
    """Few values with many digits, as of two searches whose ranks are added up."""
    g = np.random.default_rng(seed)
    right = g.random(1_500) < 0.7
    ranks = g.geometric(np.where(right, 0.6, 0.2), (2, 1_500))
    score = (1 / (60 + ranks.clip(max=10))).sum(0)
    found, said = warned(score, right)
    assert len(np.unique(score)) < 60
    assert "copies" not in said
    assert len(found.queries.mated) == 1_500


def test_many_exact_matches_are_no_copies():
    """In a cache many texts are found again, with a cosine of 1."""
    g = np.random.default_rng(0)
    score, relevant = queries(1_200)
    exact = g.random(1_200) < 0.4
    score[exact], relevant[exact] = np.float32(0.99999994), True
    found, said = warned(score, relevant)
    assert "copies" not in said
    assert len(found.queries.mated) == 1_200


def test_a_few_copies_pass_without_a_word():
    score, relevant = queries(1_000)
    pairs, burst = np.arange(40), np.arange(100, 140)
    score[pairs], relevant[pairs] = score[pairs + 40], relevant[pairs + 40]
    found, said = warned(score, relevant)
    assert not said
    assert len(found.queries.mated) == 1_000
    score[burst], relevant[burst] = score[100], relevant[100]  # as many of one question are many
    assert "79 of 1,000 queries" in warned(score, relevant)[1]


def test_equal_scores_of_many_digits_count_once_where_judgements_cannot_tell():
    """Where right and wrong hits do not overlap, equal judgements prove nothing."""
    score, relevant = (np.repeat(x, 25, 0) for x in queries(40, gap=8.0))
    found, said = warned(score, relevant)
    assert "960 of 1,000 queries are copies, with the scores of another query" in said
    assert "If they are different queries, pass items=" in said
    assert len(found.queries.mated) == 40


@pytest.mark.parametrize("digits", [2, 3])
def test_rounded_scores_that_do_not_overlap_are_copies_if_their_counts_are_uneven(digits):
    score, relevant = queries(80, gap=4.0)
    score = score.round(digits)
    said = warned(np.repeat(score, 25, 0), np.repeat(relevant, 25, 0))[1]
    assert f"each of the {len(np.unique(score))} distinct queries counts once" in said
    score, relevant = queries(2_000, gap=4.0)
    assert "copies" not in warned(score.round(digits), relevant)[1]


def test_equal_parts_are_no_copies():
    """Shares of seven votes have many digits and few values."""
    g = np.random.default_rng(0)
    right = g.random(1_500) < 0.7
    votes = g.binomial(7, np.where(right, 0.97, 0.1)) / 7
    found, said = warned(votes, right)
    assert "copies" not in said
    assert len(found.queries.mated) == 1_500


def test_copies_that_are_judged_anew_count_once():
    score, relevant = (np.repeat(x, 25, 0) for x in queries(40))
    other = relevant ^ (np.random.default_rng(0).random(relevant.shape) < 0.1)
    found, said = warned(score, other)
    assert "960 of 1,000 queries are copies" in said
    assert len(found.queries.mated) == 40


def test_copies_of_pairs_count_once_or_prove_nothing():
    """Forty pairs, each 25 times: the forty alone are too few."""

    def pairs(seed, n):
        g = np.random.default_rng(seed)
        right = g.random(n) < 0.7
        score = np.where(right, g.normal(0.82, 0.07, n), g.normal(0.66, 0.09, n))
        return np.clip(score, -1, 0.9999), right

    given = broken = 0
    for seed in range(60):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                calibration = calibrate_scores(*(np.repeat(x, 25) for x in pairs(seed, 40)))
                rule = calibration.guarantee(precision=0.9)
            except InputError:
                continue
            score, right = pairs(10_000 + seed, 3_000)
            given, broken = given + 1, broken + (right[rule(score).answered].mean() < 0.9)
    assert given < 20
    assert broken <= 2


@pytest.mark.parametrize("apart", [200, 1_000], ids=["five a group", "one a group"])
def test_copies_in_several_groups_count_in_one_of_them(apart):
    """Else 6 of 29 guarantees of .9 are broken."""
    score, relevant = (np.repeat(x, 25, 0) for x in queries(40))
    groups = np.arange(1_000) % apart
    found, said = warned(score, relevant, groups=groups)
    assert "960 of 1,000 queries are copies of queries in other groups" in said
    assert len(found.queries.probability) == 40
    with pytest.raises(InputError, match="15 queries.*15 groups"):
        warned(*(np.repeat(x, 40, 0) for x in queries(15)), groups=np.arange(600))


def test_copies_of_one_group_count_as_it_does():
    score, relevant = (np.repeat(x, 10, 0) for x in queries(60))
    found, said = warned(score, relevant, groups=np.arange(600) // 10)
    assert "copies" not in said
    assert len(found.queries.probability) == 600
    score, relevant = (x.round(2) if x.dtype == float else x for x in queries(600))
    found, said = warned(score, relevant, groups=np.arange(600) // 2)
    assert "copies" not in said
    assert len(found.queries.probability) == 600


def test_relevant_hits_in_front_of_equal_scores_are_told():
    g = np.random.default_rng(0)
    right = (g.random((400, 3)) < 0.4) & (np.arange(3) < 3)
    score = (g.normal(size=(400, 3)) + right).round(0)
    by_relevance = np.lexsort((~right, -score), 1)
    by_chance = np.lexsort((g.random((400, 3)), -score), 1)
    ordered = [np.take_along_axis(x, by_relevance, 1) for x in (score, right)]
    with pytest.warns(ScoresWarning, match=r"(\d+) of \1.*relevant.*first"):
        calibrate_scores(*ordered)
    shuffled = [np.take_along_axis(x, by_chance, 1) for x in (score, right)]
    assert "stands first" not in warned(*shuffled)[1]


def test_probabilities_that_look_like_copies_are_told():
    g = np.random.default_rng(0)
    p = g.random(100)
    right = g.random(100) < p
    with pytest.warns(ScoresWarning, match="1,900 of 2,000.*copies.*groups="):
        guarantee(np.repeat(p, 20), np.repeat(right, 20), recall=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guarantee(np.repeat(p, 20), np.repeat(right, 20), recall=0.5, groups=np.arange(2_000) // 20)
        p = g.random(2_000)
        steps = np.searchsorted([0.1, 0.3, 0.55, 0.8], p) / 4.3 + 0.02  # as of isotonic regression
        guarantee(steps, g.random(2_000) < p, recall=0.5)
