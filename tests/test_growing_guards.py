"""A gallery that grows: what is added answers, and the guarantee says what it still covers."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.calibration import Rule
from laplace_metric.errors import InputError, LabelError, NonFiniteError, StaleCalibrationWarning

pytestmark = pytest.mark.usefixtures("quick")
X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER].astype(np.float32), Y[ORDER]
N = 300
ITEMS, ADDED, NEW = slice(0, N), slice(N, N + 30), slice(1100, None)
BOTH = slice(0, N + 30)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def faiss_index(kind, vectors):
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexFlatL2(64)
    if kind == "IVF":
        index = faiss.IndexIVFFlat(flat, 64, 8)
        index.train(vectors)
        index.nprobe = 8
    else:
        made = {"L2": flat, "HNSW": faiss.IndexHNSWFlat(64, 16), "ids": faiss.IndexIDMap(flat)}
        index = made[kind]
    if kind == "ids":
        index.add_with_ids(vectors, np.arange(len(vectors)) + 5_000)
    else:
        index.add(vectors)
    return index


def own(precision=0.9):
    return Guard(X[ITEMS], Y[ITEMS], precision=precision)


def test_what_is_added_is_found_and_the_guarantee_says_that_it_is_of_the_gallery_before():
    guard = own()
    before = guard.rule
    assert before.gallery is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.add(X[ADDED], Y[ADDED])
        answers = guard.ask(X[NEW])
    assert len(guard.index) == N + 30
    assert guard.rule.value == before.value
    assert guard.index.search(X[ADDED], k=1).ids[:, 0].tolist() == list(range(N, N + 30))
    right = answers.label == Y[NEW]
    assert right[answers.answered].mean() >= 0.9
    told = "holds for the 300 items that were there; 30 were added or removed since (10.0%)"
    for shown in (repr(guard), str(guard.rule), str(guard.at(0.8).rule)):
        assert told in shown
        assert "simulated up to 10%, not proven" in shown
    assert "guarantees a precision" in str(guard.rule)


def test_the_class_model_is_that_of_all_items():
    guard = own()
    model = guard.index.class_model
    guard.add(X[ADDED], Y[ADDED])
    whole = LaplaceEmbedder.from_embeddings(X[ITEMS], Y[ITEMS], **SETTINGS).index(X[BOTH], Y[BOTH])
    whole.learn_classes(*model.prior)
    assert not np.array_equal(guard.index.class_model.weights, model.weights)
    np.testing.assert_allclose(
        guard.index.class_model.weights, whole.class_model.weights, atol=1e-4
    )


SETTINGS = {"distance": "euclidean", "hessian": "positives"}


@pytest.mark.parametrize("held_out", [False, True])
def test_a_guarantee_is_over_where_more_than_a_tenth_or_a_class_is_new(held_out, tmp_path):
    known = Y < 8
    x, y = X[known], Y[known]
    how = {"held_out": (x[600:1200], y[600:1200])} if held_out else {}
    guard = Guard(x[:N], y[:N], precision=0.9, **how)
    with pytest.warns(StaleCalibrationWarning, match=r"31 items.*with 300\. Pass"):
        guard.add(x[N : N + 31], y[N : N + 31])
    assert not guard.rule.gallery.covered
    assert not guard.rule.proven
    for shown in (repr(guard), str(guard.rule)):
        assert "no longer covers the gallery: 31 items were added or removed" in shown
    assert "guaranteed a precision" in str(guard.rule)
    assert "90% right" not in repr(guard)
    other = Guard(x[:N], [f"digit {name}" for name in y[:N]], precision=0.9)
    with pytest.warns(StaleCalibrationWarning, match=r"1 class.*'digit 9'.*no"):
        other.add(X[Y == 9][:3], ["digit 9"] * 3)
    with pytest.warns(StaleCalibrationWarning, match="1 class.*new"):
        other.ask(X[NEW][:3])
    other.save(tmp_path / "guard")
    assert str(Guard.load(tmp_path / "guard").rule) == str(other.rule)
    other.rule.save(tmp_path / "rule")
    assert str(Rule.load(tmp_path / "rule")) == str(other.rule)
    assert str(other.index.guarantee(precision=0.9)) == str(other.rule)


def test_calibrated_again_it_covers_what_is_there():
    guard = own()
    with pytest.warns(StaleCalibrationWarning):
        guard.add(X[N:700], Y[N:700])
    guard.calibrate(X[700:1100], Y[700:1100])
    assert guard.rule.gallery is None
    assert "no longer" not in repr(guard)
    assert "held-out queries" in repr(guard)
    answers = guard.ask(X[NEW])
    assert (answers.label == Y[NEW])[answers.answered].mean() >= 0.9


@pytest.mark.parametrize("kind", ["L2", "HNSW", "IVF", "ids"])
@pytest.mark.parametrize("there", [False, True])
def test_a_wrapped_index_is_given_what_is_added_unless_it_has_it(kind, there):
    index = faiss_index(kind, X[ITEMS])
    guard, names = Guard.wrap(index, Y[ITEMS]), np.arange(30) + 9_000
    if there and kind == "ids":
        index.add_with_ids(X[ADDED], names)
    elif there:
        index.add(X[ADDED])
    if there:
        with pytest.raises(InputError, match=r"holds 330 vectors.*guard\.add\(vectors, labels\)"):
            guard.ask(X[NEW])
    given = names if kind == "ids" and not there else None
    guard.add(X[ADDED], Y[ADDED], ids=given)
    assert index.ntotal == N + 30
    found = guard.index.search(X[ADDED], k=1).ids[:, 0]
    assert found.tolist() == (names if kind == "ids" else np.arange(N, N + 30)).tolist()
    plain = Guard(X[ITEMS], Y[ITEMS])
    plain.add(X[ADDED], Y[ADDED])
    agree = guard.ask(X[NEW]).label == plain.ask(X[NEW]).label
    assert agree.mean() > 0.97
    again = pickle.loads(pickle.dumps(guard))
    assert again.ask(X[NEW]).label.tolist() == guard.ask(X[NEW]).label.tolist()
    if kind == "IVF":
        index.nprobe = 2
        with pytest.raises(InputError, match="nprobe=2.*had nprobe=8"):
            guard.add(X[600:610], Y[600:610])


def test_other_vectors_or_ids_than_a_wrapped_index_has_are_refused():
    index = faiss_index("ids", X[ITEMS])
    guard = Guard.wrap(index, Y[ITEMS])
    index.add_with_ids(X[ADDED], np.arange(30) + 9_000)
    with pytest.raises(InputError, match=r"ids.*\[0, 1, 2\].*has \[9000, 9001, 9002\]"):
        guard.add(X[ADDED], Y[ADDED], ids=np.arange(30))
    with pytest.raises(InputError, match="ids has 30.*10 items"):
        guard.add(X[ADDED][:10], Y[ADDED][:10])
    with pytest.raises(InputError, match=r"finds \d%.*new items"):
        guard.add(X[ADDED][::-1], Y[ADDED][::-1])
    plain = faiss_index("L2", X[ITEMS])
    other = Guard.wrap(plain, Y[ITEMS])
    plain.add(X[ADDED])
    with pytest.raises(InputError, match="holds 330.*knew 300.*told of 10"):
        other.add(X[ADDED][:10], Y[ADDED][:10])
    assert len(guard.index) == len(other.index) == N


def test_a_search_function_must_find_what_is_added():
    rows, names = [X[ITEMS]], [f"item {i}" for i in range(N + 30)]

    def search(queries, k):
        x = np.concatenate(rows)
        nearest = np.linalg.norm(x[None] - queries[:, None], axis=2).argsort(1)[:, :k]
        return [[names[row] for row in own] for own in nearest]

    guard = Guard(X[ITEMS], Y[ITEMS], ids=names[:N], search=search)
    with pytest.raises(InputError, match=r"finds 0%.*new items.*add them there.*item"):
        guard.add(X[ADDED], Y[ADDED], ids=names[N:])
    assert len(guard.index) == N
    rows.append(X[ADDED])
    with pytest.raises(InputError, match=r"no item has.*guard\.add"):
        guard.ask(X[ADDED])
    guard.add(X[ADDED], Y[ADDED], ids=names[N:])
    assert guard.index.search(X[ADDED], k=1).ids[:, 0].tolist() == names[N:]
    assert guard.recall == 1


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((X[:2], Y[:2], [3, 900]), InputError, r"ids are in the index already: \[3\]"),
        ((X[:2], Y[:2], [900, 900]), InputError, "ids stand more than once"),
        ((X[:2], Y[:2], ["a", "b"]), InputError, "ids are numbers in the index and strings"),
        ((X[:2], Y[:2], [900]), InputError, "ids has 1 entries for 2 items"),
        ((X[:2, :5], Y[:2]), InputError, "have 5 numbers each, and 64 were fitted"),
        ((X[:2] * np.nan, Y[:2]), NonFiniteError, "NaN or infinity in rows 0, 1"),
        ((X[:2], Y[:3]), InputError, "labels has 3 entries for 2 items"),
        ((X[:2],), LabelError, "no labels were given.*pass one for each"),
        ((X[:2], ["a", "b"]), InputError, "labels are numbers in the index and strings"),
        ((X[:2], [1, None]), LabelError, "labels is missing in row 1"),
        ((X[:0], []), InputError, "holds nothing"),
    ],
)
@pytest.mark.parametrize("door", ["own", "wrapped"])
def test_what_cannot_be_added_is_named_and_nothing_is_added(given, error, message, door):
    index = faiss_index("L2", X[:200])
    guard = Guard.wrap(index, Y[:200]) if door == "wrapped" else Guard(X[:200], Y[:200])
    with pytest.raises(error, match=message):
        guard.add(*given)
    assert len(guard.index) == 200
    assert index.ntotal == 200
    assert guard.rule is None or guard.rule.gallery is None
