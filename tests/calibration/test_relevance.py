"""Relevance by ids: qrels and pairs of views give the judgements of a matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laplace_metric.calibration import calibrate_scores
from laplace_metric.calibration._calibrate_scores import judged_by_id
from laplace_metric.errors import InputError, ScoresWarning
from tests.calibration.test_scores import drawn

SCORE, RELEVANT = drawn(80)
ITEMS = np.argsort(np.random.default_rng(0).random((80, 9)), 1)[:, :5]
NAMES = {f"q{q}": [f"d{i}" for i in row] for q, row in enumerate(ITEMS)}
QRELS = {q: [i for i, r in zip(NAMES[q], row, strict=True) if r]
         for q, row in zip(NAMES, RELEVANT, strict=True)}  # fmt: skip
FIELDS = ("probability", "relevant", "mated", "total")


def same(one, other):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one.queries, name), getattr(other.queries, name))


def test_qrels_give_the_calibration_of_a_matrix():
    by_matrix = calibrate_scores(SCORE, RELEVANT)
    same(calibrate_scores(SCORE, QRELS, items=NAMES), by_matrix)
    rows = {q: ITEMS[q][RELEVANT[q]] for q in range(80)}
    same(calibrate_scores(SCORE, rows, items=ITEMS), by_matrix)


def test_relevant_items_that_no_hit_is_count_as_missed_and_as_a_match():
    qrels = {q: [*ids, "elsewhere"] for q, ids in QRELS.items()}
    found = calibrate_scores(SCORE, qrels, items=NAMES)
    assert found.queries.mated.all()
    np.testing.assert_array_equal(found.queries.total, (found.queries.relevant == 1).sum(1) + 1)


@given(st.integers(0, 10**6))
def test_judgements_are_those_of_a_loop(seed):
    g = np.random.default_rng(seed)
    n, k = 6, 4
    exists = np.arange(k) < g.integers(1, k + 1, n)[:, None]
    items = {q: g.permutation(8)[: exists[q].sum()].tolist() for q in range(n)}
    qrels = {}
    for q in range(n):
        ids = g.permutation(8)[: g.integers(0, 5)].tolist()
        way = g.integers(0, 3)
        if way == 0:
            qrels[q] = set(ids)
        elif way == 1 or not qrels:
            qrels[q] = {item: int(g.integers(-1, 3)) for item in ids}
    judged, mated, total = judged_by_id(qrels, items, exists)
    for q in range(n):
        grades = qrels.get(q, {})
        whole = isinstance(grades, set)
        good = grades if whole else {i for i, grade in grades.items() if grade > 0}
        assert total[q] == len(good)
        assert mated[q] == (1 if good else 0 if whole else -1)
        for i, item in enumerate(items[q]):
            known = whole or item in grades
            assert judged[q, i] == (int(item in good) if known else -1)


def test_the_other_view_of_an_item_is_the_match():
    g = np.random.default_rng(0)
    view = g.normal(size=(300, 8))
    others = view + 0.6 * g.normal(size=view.shape)
    similarity = view @ others.T
    rows = np.argsort(-similarity, 1)[:, :5]
    scores = np.take_along_axis(similarity, rows, 1)
    found = calibrate_scores(scores, "pairs", items=rows)
    by_hand = calibrate_scores(scores, rows == np.arange(300)[:, None], mated=np.ones(300),
                               total=np.ones(300))  # fmt: skip
    same(found, by_hand)
    assert found.queries.mated.all()


def test_what_is_not_graded_is_left_out():
    graded = {q: {NAMES[q][0]: grade[0], NAMES[q][1]: 0} for q, grade in zip(
        NAMES, RELEVANT.astype(int), strict=True)}  # fmt: skip
    with pytest.warns(ScoresWarning, match="240 of 400.*not judged"):
        found = calibrate_scores(SCORE, graded, items=NAMES)
    assert set(found.queries.mated) == {-1, 1}


@pytest.mark.parametrize(
    ("relevant", "items", "message"),
    [
        (QRELS, None, r"takes items=, the ids of the hits"),
        ("pairs", None, r"relevant='pairs' takes items="),
        (QRELS, ITEMS[:, :2], r"items has shape \(80, 2\): pass \(80, 5\)"),
        (QRELS, {"q0": ["d1"]}, "items has 1 queries and scores 80"),
        (QRELS, NAMES | {"q3": ["d1", "d2"]}, "items of query 'q3' are 2 but 5 have a score"),
        (QRELS, NAMES | {"q3": [*"abca", "e"]}, "items of query 'q3' holds 'a' 2 times"),
        (QRELS | {"q3": ["d1", "d1"]}, NAMES, "relevant of query 'q3' holds 'd1' 2 times"),
        (QRELS | {"q3": "d1"}, NAMES, "relevant of query 'q3' is 'd1': pass a list of ids"),
        (QRELS | {"q3": 3}, NAMES, "relevant of query 'q3' is 3: pass a list of ids"),
        (QRELS | {"q3": [[1]]}, NAMES, "pass a list of ids"),
        ({"other": ["d1"]}, NAMES, "of queries such as 'q0', which items= names"),
        ("same", NAMES, "relevant='same': pass 'pairs'"),
        (RELEVANT, NAMES, "pass 'pairs', or ids by query"),
    ],
)
def test_ids_that_do_not_fit_are_named(relevant, items, message):
    with pytest.raises(InputError, match=message):
        calibrate_scores(SCORE, relevant, items=items)


def as_type(kind):
    return {q: [kind(i) for i in ids] for q, ids in NUMBERS.items()}


NUMBERS = {q: ITEMS[q][RELEVANT[q]].tolist() for q in range(80)}


@pytest.mark.parametrize(
    ("relevant", "items", "message"),
    [
        (NUMBERS, ITEMS.astype(str), r"relevant items are of type int, such as \d.*type str"),
        (as_type(str), ITEMS, r"type str, such as '\d+', and ids of items of type int, such as \d"),
        (as_type(lambda i: str(i).encode()), ITEMS.astype(str), "type bytes, .* type str"),
        ({str(q): ids for q, ids in NUMBERS.items()}, ITEMS,
         "queries of relevant are of type str, such as '0', and queries of items of type int"),
        ("pairs", ITEMS.astype(str), "relevant items are of type int, such as 0, .* type str"),
        ({q: {str(i): 1 for i in ids} for q, ids in NUMBERS.items()}, ITEMS, "type str.*type int"),
    ],
)  # fmt: skip
def test_ids_of_another_type_are_named(relevant, items, message):
    with pytest.raises(InputError, match=message):
        calibrate_scores(SCORE, relevant, items=items)


def test_numbers_of_any_type_are_one_type():
    wanted = calibrate_scores(SCORE, NUMBERS, items=ITEMS)
    same(calibrate_scores(SCORE, as_type(float), items=ITEMS), wanted)
    same(calibrate_scores(SCORE, as_type(np.int16), items=ITEMS.astype(np.uint8)), wanted)
    mixed = {q: [*ids, "elsewhere"] for q, ids in NUMBERS.items()}
    assert (
        calibrate_scores(SCORE, mixed, items=ITEMS).queries.relevant == wanted.queries.relevant
    ).all()


@pytest.mark.parametrize("grade", [None, "1", float("nan")])
def test_a_grade_that_is_no_number_is_named(grade):
    score = np.sort(np.random.default_rng(0).random((60, 2)), 1)[:, ::-1]
    items = {q: [f"{q}a", f"{q}b"] for q in range(60)}
    qrels = {q: {f"{q}a": 1, f"{q}b": 0} for q in range(60)} | {7: {"7a": grade}}
    with pytest.raises(InputError, match=r"relevant of query 7.*'7a' .*pass numbers"):
        calibrate_scores(score, qrels, items=items)


def test_grades_of_relevant_items_alone_are_refused():
    """What is not graded was not judged: no error could be counted."""
    score = np.sort(np.random.default_rng(0).random((60, 2)), 1)[:, ::-1]
    items = {q: [f"{q}a", f"{q}b"] for q in range(60)}
    qrels = {q: {f"{q}a" if q % 3 else "other": 1} for q in range(60)}
    with pytest.raises(InputError, match=r"all 40.*relevant.*80 are not .*lists"):
        calibrate_scores(score, qrels, items=items)
    lists = {q: [*grades] for q, grades in qrels.items()}
    assert calibrate_scores(score, lists, items=items).queries.relevant[:, 0].sum() == 40
    with pytest.raises(InputError, match=r"\{query: \[item, \.\.\.\]\}.*\{query: \{item: grade"):
        calibrate_scores(score, {0.5: {"doc": 1}}, items=items)
    with pytest.raises(InputError, match="items=.*ids.*hits"):
        calibrate_scores(score, {"query": {"doc": 1}})
